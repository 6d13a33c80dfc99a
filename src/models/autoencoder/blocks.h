// The parts of the autoencoder, named as in the official code
// (https://github.com/black-forest-labs/flux, src/flux/modules/autoencoder.py). Parameters are slots
// registered in the group given to the constructor. Shapes: B batch, H and W size of the picture here.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <string>

#include "nn/parameter.h"

namespace flowshard::models {

/// A square convolution with bias. 3x3 keeps the size; stride 2 halves it, padding right and below only.
class Conv2d {
 public:
  Conv2d(nn::ParameterGroup& group, const std::string& name, int64_t in, int64_t out, int64_t kernel = 3,
         int64_t stride = 1);

  at::Tensor forward(const at::Tensor& pictures) const;  // [B, in, H, W]
  /// A 3x3 convolution without padding above and below: [B, in, H + 2, W] -> [B, out, H, W].
  at::Tensor forward_inner_rows(const at::Tensor& pictures) const;
  /// The 1x1 convolution of tokens [B, L, in], which is a linear layer.
  at::Tensor forward_tokens(const at::Tensor& x) const;
  int64_t out_channels() const { return weight_.shape[0]; }

 private:
  nn::Parameter weight_, bias_;
  int64_t stride_;
};

class GroupNorm {
 public:
  static constexpr double kEps = 1e-6;

  GroupNorm(nn::ParameterGroup& group, const std::string& name, int64_t channels, int64_t num_groups);

  at::Tensor forward(const at::Tensor& x) const;
  at::Tensor forward_silu(const at::Tensor& x) const;

  const at::Tensor& weight() const { return weight_.value; }  // [channels]
  const at::Tensor& bias() const { return bias_.value; }
  int64_t num_groups() const { return num_groups_; }

 private:
  nn::Parameter weight_, bias_;
  int64_t num_groups_;
};

class ResnetBlock {
 public:
  ResnetBlock(nn::ParameterGroup& group, const std::string& name, int64_t in, int64_t out,
              int64_t num_groups);
  at::Tensor forward(const at::Tensor& x) const;

 private:
  GroupNorm norm1_;
  Conv2d conv1_;
  GroupNorm norm2_;
  Conv2d conv2_;
  std::optional<Conv2d> nin_shortcut_;
};

/// Single-head attention over all places of the picture.
class AttnBlock {
 public:
  AttnBlock(nn::ParameterGroup& group, const std::string& name, int64_t channels, int64_t num_groups);
  at::Tensor forward(const at::Tensor& x) const;

 private:
  GroupNorm norm_;
  Conv2d q_, k_, v_, proj_out_;
};

}  // namespace flowshard::models
