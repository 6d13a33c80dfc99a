// FLUX's image autoencoder (AutoencoderKL). Parameter names are those of the official code
// ("decoder.up.0.block.1.conv1"). Shapes: B batch, C latent channels, H and W pixels, f = 2^(levels - 1)
// pixels a latent. Frozen: forward only, without autograd. Used by one thread at a time.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor_names.h"
#include "nn/parameter.h"

namespace flowshard::models {

struct AutoencoderConfig {
  std::vector<int64_t> block_out_channels = {128, 256, 512, 512};
  int64_t layers_per_block = 2;
  int64_t in_channels = 3;
  int64_t latent_channels = 16;
  int64_t norm_num_groups = 32;
  double scaling_factor = 0.3611;
  double shift_factor = 0.1159;
  bool use_quant_conv = false;  // 1x1 convolutions around the latent, present in older autoencoders
  bool use_post_quant_conv = false;
  bool mid_block_add_attention = true;

  int64_t downsampling() const { return int64_t{1} << (block_out_channels.size() - 1); }

  /// Reads a diffusers vae/config.json. Throws ConfigError naming file and key if it is absent or does not
  /// fit.
  static AutoencoderConfig from_file(const std::filesystem::path& config_json);

  /// Infers it from the shapes in a file of the official code (ae.safetensors). What shapes do not tell is
  /// FLUX.1's (32 norm groups; scaling and shift for 16 latent channels) unless the metadata say otherwise
  /// ("norm_num_groups", "scaling_factor", "shift_factor"). Throws CheckpointError.
  static AutoencoderConfig from_bfl(const TensorListing& file);

  /// What from_bfl needs beside the shapes.
  std::map<std::string, std::string> bfl_metadata() const;
  /// A diffusers vae/config.json.
  std::string to_diffusers() const;
};

/// Whether these are the tensors of an autoencoder of the official code (and of other latent diffusion).
bool is_autoencoder_bfl(const TensorListing& file);
/// ... of a diffusers AutoencoderKL.
bool is_autoencoder_diffusers(const TensorListing& file);

/// Keys of a diffusers AutoencoderKL (the fourth block of `decoder.up` is its first `up_blocks`).
TensorNames autoencoder_diffusers_names(const AutoencoderConfig& config);
/// The shape in which diffusers stores a tensor that the official code stores as `shape`: the attention's 1x1
/// convolutions are linear layers there.
std::vector<int64_t> autoencoder_diffusers_shape(const std::string& diffusers_key,
                                                 std::vector<int64_t> shape);

/// The keys of the official code, which are our names.
TensorNames autoencoder_bfl_names(const AutoencoderConfig& config);

class Autoencoder {
 public:
  explicit Autoencoder(const AutoencoderConfig& config);
  ~Autoencoder();

  struct Posterior {
    at::Tensor mean;    // [B, C, H/f, W/f]
    at::Tensor logvar;  // the same shape, clamped to [-30, 20] as diffusers does
  };
  /// images [B, 3, H, W] in [-1, 1], H and W multiples of f. The latent that the transformer sees is (sample
  /// - shift_factor) * scaling_factor. On a CPU a picture's result does not depend on the others, bit for
  /// bit.
  Posterior encode(const at::Tensor& images);

  /// latents [B, C, H/f, W/f], already unscaled -> images [B, 3, H, W], about [-1, 1], not clamped.
  at::Tensor decode(const at::Tensor& latents);

  const std::vector<nn::Parameter*>& parameters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace flowshard::models
