// The parts of the FLUX transformer, named as in the official code
// (https://github.com/black-forest-labs/flux, src/flux/modules/layers.py). Single-device; parameters are
// slots registered in the group given to the constructor. Shapes: B batch, L tokens (L_txt, L_img), D hidden
// size, H heads, Dh channels of a head.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <utility>
#include <vector>

#include "models/flow_transformer/config.h"
#include "nn/block_runner.h"
#include "nn/linear.h"

namespace flowshard::models {

/// Rotary angles of the whole sequence, each [L, Dh / 2] fp32 (fp64 for a model in fp64).
struct RotaryAngles {
  at::Tensor cos, sin;
};

/// EmbedND: the angles of positions `ids` [L, 3], axis by axis. Computed in fp64 on the CPU, as diffusers
/// does.
RotaryAngles embed_nd(const at::Tensor& ids, const std::vector<int64_t>& axes_dim, double theta,
                      const at::TensorOptions& options = at::kFloat);

/// cat(cos, sin) of 1000 t w_i, w_i = 10000^(-i / 128): t [B] fp32 -> [B, 256] fp32.
at::Tensor timestep_embedding(const at::Tensor& t);

/// Linear, SiLU, Linear.
class MLPEmbedder {
 public:
  MLPEmbedder(nn::ParameterGroup& group, const std::string& name, int64_t in_dim, int64_t hidden_dim)
      : in_layer(group, name + ".in_layer", in_dim, hidden_dim),
        out_layer(group, name + ".out_layer", hidden_dim, hidden_dim) {}
  at::Tensor forward(const at::Tensor& x) { return out_layer.forward(at::silu(in_layer.forward(x))); }

  nn::Linear in_layer, out_layer;
};

/// The RMS norms of queries and keys.
class QKNorm {
 public:
  QKNorm(nn::ParameterGroup& group, const std::string& name, int64_t head_dim);
  nn::Parameter query_scale, key_scale;
};

/// One stream's half of a double block.
class DoubleStream {
 public:
  DoubleStream(nn::ParameterGroup& group, const std::string& name, const FlowTransformerConfig& config);
  nn::Linear mod, qkv;
  QKNorm norm;
  nn::Linear proj, mlp_0, mlp_2;
};

class DoubleStreamBlock {
 public:
  DoubleStreamBlock(const std::string& name, const FlowTransformerConfig& config);
  DoubleStreamBlock(const DoubleStreamBlock&) = delete;

  /// silu(vec) [B, D] -> [B, 12 D]: shift, scale and gate of attention, then of the MLP; of img, then of txt.
  at::Tensor modulation(const at::Tensor& silu_vec);

  /// {img [B, L_img, D], txt [B, L_txt, D], modulation [B, 12 D]} -> {img, txt}. `angles` are of [txt, img].
  nn::Tensors forward(const nn::Tensors& inputs, const RotaryAngles& angles);

  nn::ParameterGroup group;

 private:
  int64_t num_heads_;
  DoubleStream img_, txt_;
};

class SingleStreamBlock {
 public:
  SingleStreamBlock(const std::string& name, const FlowTransformerConfig& config);
  SingleStreamBlock(const SingleStreamBlock&) = delete;

  /// silu(vec) [B, D] -> [B, 3 D]: shift, scale, gate.
  at::Tensor modulation(const at::Tensor& silu_vec) { return modulation_.forward(silu_vec); }

  /// {x [B, L, D] (txt then img), modulation [B, 3 D]} -> {x}.
  nn::Tensors forward(const nn::Tensors& inputs, const RotaryAngles& angles);

  nn::ParameterGroup group;

 private:
  at::Tensor attend(const at::Tensor& qkv, const RotaryAngles& angles);  // [B, L, 3 D] -> [B, L, D]
  /// y [B, L, D] -> [B, L, D + MLP], what linear2 reads: without gradients written in place by the products,
  /// otherwise (and with adapters on linear1) cut and joined.
  at::Tensor attention_and_mlp(const at::Tensor& y, const RotaryAngles& angles);
  nn::Recipe attention_and_mlp_by_parts(const nn::Recipe& y, const RotaryAngles& angles);

  int64_t num_heads_, hidden_size_, mlp_hidden_dim_;
  nn::Linear modulation_, linear1_, linear2_;
  QKNorm norm_;
};

class LastLayer {
 public:
  LastLayer(nn::ParameterGroup& group, const FlowTransformerConfig& config);
  /// silu(vec) [B, D] -> [B, 2 D]: shift, scale.
  at::Tensor modulation(const at::Tensor& silu_vec) { return modulation_.forward(silu_vec); }

  /// [B, L, D], modulation [B, 2 D] -> [B, L, out_channels]
  at::Tensor forward(const at::Tensor& x, const at::Tensor& modulation);

 private:
  nn::Linear linear_, modulation_;
};

}  // namespace flowshard::models
