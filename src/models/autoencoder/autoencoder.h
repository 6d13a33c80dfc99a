// FLUX's image autoencoder (AutoencoderKL). Parameter names are those of the official code
// ("decoder.up.0.block.1.conv1"). Shapes: B batch, C latent channels, H and W pixels, f = 2^(levels - 1)
// pixels a latent. Frozen: forward only, without autograd. Used by one thread at a time.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <vector>

#include "core/tensor_names.h"
#include "models/autoencoder/autoencoder_config.h"
#include "nn/parameter.h"

namespace flowshard::models {

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
