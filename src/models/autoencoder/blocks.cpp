#include "models/autoencoder/blocks.h"

#include "models/autoencoder/bands.h"

namespace flowshard::models {
namespace {

// [Note: order of pictures] On a CPU a convolution takes half the time on channels-last pictures, the
// reordering included. ATen's channels-last group norm, however, computes the variance as E[x^2] - E[x]^2 and
// loses up to four digits. So convolutions reorder what they get, and norms order it back.
at::Tensor in_order_of_convolutions(const at::Tensor& x) {
  return x.is_cpu() ? x.contiguous(at::MemoryFormat::ChannelsLast) : x;
}

// [Note: one picture or many] at::conv2d computes a single small picture another way than several, with other
// last bits. A latent must not depend on how many pictures were encoded with it: a run that is resumed has
// other pictures left to encode than one that was not interrupted. So on a CPU it is oneDNN for all.
at::Tensor convolution(const at::Tensor& x, const nn::Parameter& weight, const nn::Parameter& bias,
                       int64_t stride, int64_t padding) {
  if (x.is_cpu() && x.scalar_type() == at::kFloat && at::hasMKLDNN()) {
    return at::mkldnn_convolution(x, weight.value, bias.value, {padding, padding}, {stride, stride}, {1, 1},
                                  /*groups=*/1);
  }
  return at::conv2d(x, weight.value, bias.value, stride, padding);
}

}  // namespace

Conv2d::Conv2d(nn::ParameterGroup& group, const std::string& name, int64_t in, int64_t out, int64_t kernel,
               int64_t stride)
    : weight_(name + ".weight", {out, in, kernel, kernel}), bias_(name + ".bias", {out}), stride_(stride) {
  group.parameters.insert(group.parameters.end(), {&weight_, &bias_});
}

at::Tensor Conv2d::forward(const at::Tensor& pictures) const {
  const at::Tensor x = in_order_of_convolutions(pictures);
  if (stride_ == 2)
    return convolution(at::constant_pad_nd(x, {0, 1, 0, 1}), weight_, bias_, 2, /*padding=*/0);
  return convolution(x, weight_, bias_, stride_, /*padding=*/weight_.shape[2] / 2);
}

at::Tensor Conv2d::forward_inner_rows(const at::Tensor& pictures) const {
  return at::conv2d(in_order_of_convolutions(pictures), weight_.value, bias_.value,
                    /*stride=*/at::IntArrayRef{1},
                    /*padding=*/at::IntArrayRef{0, 1});
}

at::Tensor Conv2d::forward_tokens(const at::Tensor& x) const {
  return at::linear(x, weight_.value.flatten(1), bias_.value);
}

GroupNorm::GroupNorm(nn::ParameterGroup& group, const std::string& name, int64_t channels, int64_t num_groups)
    : weight_(name + ".weight", {channels}), bias_(name + ".bias", {channels}), num_groups_(num_groups) {
  group.parameters.insert(group.parameters.end(), {&weight_, &bias_});
}

at::Tensor GroupNorm::forward(const at::Tensor& x) const {
  // [Note: order of pictures]
  return at::group_norm(x.contiguous(), num_groups_, weight_.value, bias_.value, kEps);
}

at::Tensor GroupNorm::forward_silu(const at::Tensor& x) const {
  at::Tensor y = forward(x);
  return at::silu_(y);
}

ResnetBlock::ResnetBlock(nn::ParameterGroup& group, const std::string& name, int64_t in, int64_t out,
                         int64_t num_groups)
    : norm1_(group, name + ".norm1", in, num_groups),
      conv1_(group, name + ".conv1", in, out),
      norm2_(group, name + ".norm2", out, num_groups),
      conv2_(group, name + ".conv2", out, out) {
  if (in != out) nin_shortcut_.emplace(group, name + ".nin_shortcut", in, out, 1);
}

at::Tensor ResnetBlock::forward(const at::Tensor& x) const {
  at::Tensor h = norm_silu_conv(norm1_, conv1_, x);
  h = norm_silu_conv(norm2_, conv2_, h);
  if (!nin_shortcut_) return h.add_(x);
  add_conv(h, *nin_shortcut_, x);
  return h;
}

AttnBlock::AttnBlock(nn::ParameterGroup& group, const std::string& name, int64_t channels, int64_t num_groups)
    : norm_(group, name + ".norm", channels, num_groups),
      q_(group, name + ".q", channels, channels, 1),
      k_(group, name + ".k", channels, channels, 1),
      v_(group, name + ".v", channels, channels, 1),
      proj_out_(group, name + ".proj_out", channels, channels, 1) {}

at::Tensor AttnBlock::forward(const at::Tensor& x) const {
  const at::Tensor tokens = norm_.forward(x).flatten(2).transpose(1, 2);  // [B, H W, channels]
  const auto head = [&](const Conv2d& projection) { return projection.forward_tokens(tokens).unsqueeze(1); };
  const at::Tensor out = at::scaled_dot_product_attention(head(q_), head(k_), head(v_)).squeeze(1);
  return proj_out_.forward_tokens(out).transpose(1, 2).reshape(x.sizes()).add_(x);
}

}  // namespace flowshard::models
