#include "models/flow_transformer/blocks.h"

#include <cmath>
#include <span>

#include "kernels/attention.h"
#include "kernels/gate_residual.h"
#include "kernels/layer_norm_modulate.h"
#include "kernels/linear_gelu.h"
#include "kernels/qk_norm_rope.h"

namespace flowshard::models {
namespace {

at::Tensor merge_heads(const at::Tensor& attention) {
  return attention.transpose(1, 2).flatten(2);
}  // -> [B, L, D]

/// Hidden states that leave the range of fp16 are moved to its ends, where diffusers does so.
at::Tensor within_fp16(const at::Tensor& x) {
  return x.scalar_type() == at::kHalf ? x.clamp(-65504, 65504) : x;
}

nn::Recipe norm_recipe(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale) {
  return {[](const nn::Tensors& in) { return kernels::layer_norm_modulate(in[0], in[1], in[2]); },
          {x, shift, scale}};
}

nn::Recipe gelu_recipe(const at::Tensor& x) {
  return {[](const nn::Tensors& in) { return at::gelu(in[0], "tanh"); }, {x}};
}

/// mlp_2(gelu(mlp_0(x))). Without gradients and adapters the GELU is a part of the product.
at::Tensor mlp(DoubleStream& stream, const nn::Recipe& x) {
  nn::Linear& first = stream.mlp_0;
  if (at::GradMode::is_enabled() || !first.weight.low_rank.empty())
    return stream.mlp_2.forward(gelu_recipe(first.forward(x)));
  return stream.mlp_2.forward(kernels::linear_gelu(x(), first.weight.value, first.bias->value));
}

/// Heads of the streams' joint attention, merged: [B, L, D]. `recompute`: q, k and v are not kept.
at::Tensor joint_attention(const std::vector<kernels::QkvStream>& streams, const RotaryAngles& angles,
                           bool recompute) {
  if (recompute) return merge_heads(kernels::attention_of_streams(streams, angles.cos, angles.sin));
  const auto joint = kernels::qk_norm_rope(streams, angles.cos, angles.sin);
  return merge_heads(kernels::attention(joint.q, joint.k, joint.v));
}

kernels::QkvStream stream_of(const at::Tensor& qkv, QKNorm& norm, int64_t num_heads) {
  // [B, L, 3 D] -> [B, L, 3, H, Dh]
  return {qkv.unflatten(-1, {3, num_heads, -1}), nn::use_copy(norm.query_scale),
          nn::use_copy(norm.key_scale)};
}

}  // namespace

RotaryAngles embed_nd(const at::Tensor& ids, const std::vector<int64_t>& axes_dim, double theta,
                      const at::TensorOptions& options) {
  std::vector<at::Tensor> angles;
  for (size_t axis = 0; axis < axes_dim.size(); ++axis) {
    const int64_t dim = axes_dim[axis];
    const at::Tensor exponent = at::arange(0, dim, 2, at::kDouble) / static_cast<double>(dim);
    const at::Tensor omega = 1.0 / at::pow(at::Scalar(theta), exponent);
    angles.push_back(at::outer(ids.select(1, static_cast<int64_t>(axis)).to(at::kCPU, at::kDouble), omega));
  }
  const at::Tensor all = at::cat(angles, 1);
  return {all.cos().to(options), all.sin().to(options)};
}

at::Tensor timestep_embedding(const at::Tensor& t) {
  constexpr int64_t kHalf = 128;
  const at::Tensor exponent = at::arange(kHalf, t.options().dtype(at::kFloat)) * (-std::log(10000.0)) / kHalf;
  const at::Tensor angles = (t.to(at::kFloat) * 1000.0).unsqueeze(1) * at::exp(exponent).unsqueeze(0);
  return at::cat({angles.cos(), angles.sin()}, 1);
}

QKNorm::QKNorm(nn::ParameterGroup& group, const std::string& name, int64_t head_dim)
    : query_scale(name + ".query_norm.scale", {head_dim}), key_scale(name + ".key_norm.scale", {head_dim}) {
  group.parameters.push_back(&query_scale);
  group.parameters.push_back(&key_scale);
}

DoubleStream::DoubleStream(nn::ParameterGroup& group, const std::string& name,
                           const FlowTransformerConfig& config)
    : mod(group, name + "_mod.lin", config.hidden_size, 6 * config.hidden_size),
      qkv(group, name + "_attn.qkv", config.hidden_size, 3 * config.hidden_size),
      norm(group, name + "_attn.norm", config.head_dim()),
      proj(group, name + "_attn.proj", config.hidden_size, config.hidden_size),
      mlp_0(group, name + "_mlp.0", config.hidden_size, config.mlp_hidden_dim),
      mlp_2(group, name + "_mlp.2", config.mlp_hidden_dim, config.hidden_size) {}

DoubleStreamBlock::DoubleStreamBlock(const std::string& name, const FlowTransformerConfig& config)
    : group{name, {}},
      num_heads_(config.num_heads),
      img_(group, name + ".img", config),
      txt_(group, name + ".txt", config) {}

at::Tensor DoubleStreamBlock::modulation(const at::Tensor& silu_vec) {
  return at::cat({img_.mod.forward(silu_vec), txt_.mod.forward(silu_vec)}, -1);
}

nn::Tensors DoubleStreamBlock::forward(const nn::Tensors& inputs, const RotaryAngles& angles) {
  const at::Tensor &img = inputs[0], &txt = inputs[1];
  const int64_t txt_length = txt.size(1), img_length = img.size(1);
  const auto mod = inputs[2].chunk(12, -1);
  const std::span img_mod(mod.begin(), 6), txt_mod(mod.begin() + 6, 6);

  const at::Tensor img_qkv = img_.qkv.forward(norm_recipe(img, img_mod[0], img_mod[1]));
  const at::Tensor txt_qkv = txt_.qkv.forward(norm_recipe(txt, txt_mod[0], txt_mod[1]));
  // [Note: split] The gradients of a split are joined in one copy; those of narrow() are each padded with
  // zeros to the whole tensor and then added.
  const auto attention =
      joint_attention({stream_of(txt_qkv, txt_.norm, num_heads_), stream_of(img_qkv, img_.norm, num_heads_)},
                      angles, txt_.qkv.weight.recompute_input)
          .split_with_sizes({txt_length, img_length}, 1);

  const auto rest = [](DoubleStream& stream, std::span<const at::Tensor> mod, const at::Tensor& x,
                       const at::Tensor& attention) {
    const at::Tensor y = kernels::gate_residual(x, stream.proj.forward(attention), mod[2]);
    return kernels::gate_residual(y, mlp(stream, norm_recipe(y, mod[3], mod[4])), mod[5]);
  };
  return {rest(img_, img_mod, img, attention[1]), within_fp16(rest(txt_, txt_mod, txt, attention[0]))};
}

SingleStreamBlock::SingleStreamBlock(const std::string& name, const FlowTransformerConfig& config)
    : group{name, {}},
      num_heads_(config.num_heads),
      hidden_size_(config.hidden_size),
      mlp_hidden_dim_(config.mlp_hidden_dim),
      modulation_(group, name + ".modulation.lin", config.hidden_size, 3 * config.hidden_size),
      linear1_(group, name + ".linear1", config.hidden_size, 3 * config.hidden_size + config.mlp_hidden_dim),
      linear2_(group, name + ".linear2", config.hidden_size + config.mlp_hidden_dim, config.hidden_size),
      norm_(group, name + ".norm", config.head_dim()) {}

nn::Tensors SingleStreamBlock::forward(const nn::Tensors& inputs, const RotaryAngles& angles) {
  const at::Tensor& x = inputs[0];
  const auto mod = inputs[1].chunk(3, -1);
  const nn::Recipe y = norm_recipe(x, mod[0], mod[1]);
  const bool fused = !at::GradMode::is_enabled() && linear1_.weight.low_rank.empty();
  const at::Tensor out = fused ? linear2_.forward(attention_and_mlp(y(), angles))
                               : linear2_.forward(attention_and_mlp_by_parts(y, angles));
  return {within_fp16(kernels::gate_residual(x, out, mod[2]))};
}

at::Tensor SingleStreamBlock::attend(const at::Tensor& qkv, const RotaryAngles& angles) {
  return joint_attention({stream_of(qkv, norm_, num_heads_)}, angles, linear1_.weight.recompute_input);
}

nn::Recipe SingleStreamBlock::attention_and_mlp_by_parts(const nn::Recipe& y, const RotaryAngles& angles) {
  // [Note: split]
  const auto parts = linear1_.forward(y).split_with_sizes({3 * hidden_size_, mlp_hidden_dim_}, -1);
  return {[](const nn::Tensors& in) {
            return at::cat({in[0], at::gelu(in[1], "tanh")}, -1);
          },
          {attend(parts[0], angles), parts[1]}};
}

at::Tensor SingleStreamBlock::attention_and_mlp(const at::Tensor& y, const RotaryAngles& angles) {
  const auto weights = linear1_.weight.value.split_with_sizes({3 * hidden_size_, mlp_hidden_dim_});
  const auto biases = linear1_.bias->value.split_with_sizes({3 * hidden_size_, mlp_hidden_dim_});
  const at::Tensor out = at::empty({y.size(0), y.size(1), hidden_size_ + mlp_hidden_dim_}, y.options());
  const auto parts = out.split_with_sizes({hidden_size_, mlp_hidden_dim_}, -1);
  kernels::linear_gelu_out(parts[1], y, weights[1], biases[1]);
  parts[0].copy_(attend(at::linear(y, weights[0], biases[0]), angles));
  return out;
}

LastLayer::LastLayer(nn::ParameterGroup& group, const FlowTransformerConfig& config)
    : linear_(group, "final_layer.linear", config.hidden_size, config.out_channels),
      modulation_(group, "final_layer.adaLN_modulation.1", config.hidden_size, 2 * config.hidden_size) {}

at::Tensor LastLayer::forward(const at::Tensor& x, const at::Tensor& modulation) {
  const auto mod = modulation.chunk(2, -1);  // shift, scale
  return linear_.forward(kernels::layer_norm_modulate(x, mod[0], mod[1]));
}

}  // namespace flowshard::models
