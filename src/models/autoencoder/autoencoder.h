// FLUX's image autoencoder (AutoencoderKL). Parameter names are those of the official code
// ("decoder.up.0.block.1.conv1"). Shapes: B batch, C latent channels, H and W pixels, f = 2^(levels - 1)
// pixels a latent. Frozen: forward only, without autograd. Used by one thread at a time.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <memory>
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
};

/// Keys of a diffusers AutoencoderKL (the fourth block of `decoder.up` is its first `up_blocks`).
TensorNames autoencoder_diffusers_names(const AutoencoderConfig& config);

class Autoencoder {
 public:
  explicit Autoencoder(const AutoencoderConfig& config);
  ~Autoencoder();

  struct Posterior {
    at::Tensor mean;    // [B, C, H/f, W/f]
    at::Tensor logvar;  // the same shape, clamped to [-30, 20] as diffusers does
  };
  /// images [B, 3, H, W] in [-1, 1], H and W multiples of f. The latent that the transformer sees is (sample
  /// - shift_factor) * scaling_factor.
  Posterior encode(const at::Tensor& images);

  /// latents [B, C, H/f, W/f], already unscaled -> images [B, 3, H, W], about [-1, 1], not clamped.
  at::Tensor decode(const at::Tensor& latents);

  const std::vector<nn::Parameter*>& parameters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace flowshard::models
