#include "models/autoencoder/autoencoder.h"

#include <deque>
#include <optional>

#include "core/error.h"

namespace flowshard::models {
namespace {

constexpr double kNormEps = 1e-6;

// [Note: order of pictures] On a CPU a convolution takes half the time on channels-last pictures, the
// reordering included. ATen's channels-last group norm, however, computes the variance as E[x^2] - E[x]^2 and
// loses up to four digits. So convolutions reorder what they get, and norms order it back.
at::Tensor in_order_of_convolutions(const at::Tensor& x) {
  return x.is_cpu() ? x.contiguous(at::MemoryFormat::ChannelsLast) : x;
}

/// A square convolution with bias. 3x3 keeps the size; stride 2 halves it, padding right and below only.
class Conv {
 public:
  Conv(nn::ParameterGroup& group, const std::string& name, int64_t in, int64_t out, int64_t kernel = 3,
       int64_t stride = 1)
      : weight_(name + ".weight", {out, in, kernel, kernel}), bias_(name + ".bias", {out}), stride_(stride) {
    group.parameters.insert(group.parameters.end(), {&weight_, &bias_});
  }

  at::Tensor forward(const at::Tensor& pictures) const {  // [B, in, H, W]
    const at::Tensor x = in_order_of_convolutions(pictures);
    if (stride_ == 2)
      return at::conv2d(at::constant_pad_nd(x, {0, 1, 0, 1}), weight_.value, bias_.value, stride_);
    return at::conv2d(x, weight_.value, bias_.value, stride_, /*padding=*/weight_.shape[2] / 2);
  }

  /// The 1x1 convolution of tokens [B, L, in], which is a linear layer.
  at::Tensor forward_tokens(const at::Tensor& x) const {
    return at::linear(x, weight_.value.flatten(1), bias_.value);
  }

 private:
  nn::Parameter weight_, bias_;
  int64_t stride_;
};

class Norm {
 public:
  Norm(nn::ParameterGroup& group, const std::string& name, int64_t channels, int64_t num_groups)
      : weight_(name + ".weight", {channels}), bias_(name + ".bias", {channels}), num_groups_(num_groups) {
    group.parameters.insert(group.parameters.end(), {&weight_, &bias_});
  }

  at::Tensor forward(const at::Tensor& x) const {
    // [Note: order of pictures]
    return at::group_norm(x.contiguous(), num_groups_, weight_.value, bias_.value, kNormEps);
  }
  at::Tensor forward_silu(const at::Tensor& x) const {
    at::Tensor y = forward(x);
    return at::silu_(y);
  }

 private:
  nn::Parameter weight_, bias_;
  int64_t num_groups_;
};

class ResnetBlock {
 public:
  ResnetBlock(nn::ParameterGroup& group, const std::string& name, int64_t in, int64_t out, int64_t num_groups)
      : norm1_(group, name + ".norm1", in, num_groups),
        conv1_(group, name + ".conv1", in, out),
        norm2_(group, name + ".norm2", out, num_groups),
        conv2_(group, name + ".conv2", out, out) {
    if (in != out) nin_shortcut_.emplace(group, name + ".nin_shortcut", in, out, 1);
  }

  at::Tensor forward(const at::Tensor& x) const {
    at::Tensor h = conv1_.forward(norm1_.forward_silu(x));
    h = conv2_.forward(norm2_.forward_silu(h));
    return h.add_(nin_shortcut_ ? nin_shortcut_->forward(x) : x);
  }

 private:
  Norm norm1_;
  Conv conv1_;
  Norm norm2_;
  Conv conv2_;
  std::optional<Conv> nin_shortcut_;
};

/// Single-head attention over all places of the picture.
class AttnBlock {
 public:
  AttnBlock(nn::ParameterGroup& group, const std::string& name, int64_t channels, int64_t num_groups)
      : norm_(group, name + ".norm", channels, num_groups),
        q_(group, name + ".q", channels, channels, 1),
        k_(group, name + ".k", channels, channels, 1),
        v_(group, name + ".v", channels, channels, 1),
        proj_out_(group, name + ".proj_out", channels, channels, 1) {}

  at::Tensor forward(const at::Tensor& x) const {
    const at::Tensor tokens = norm_.forward(x).flatten(2).transpose(1, 2);  // [B, H W, channels]
    const auto head = [&](const Conv& projection) { return projection.forward_tokens(tokens).unsqueeze(1); };
    const at::Tensor out = at::scaled_dot_product_attention(head(q_), head(k_), head(v_)).squeeze(1);
    return proj_out_.forward_tokens(out).transpose(1, 2).reshape(x.sizes()).add_(x);
  }

 private:
  Norm norm_;
  Conv q_, k_, v_, proj_out_;
};

struct Mid {
  Mid(nn::ParameterGroup& group, const std::string& name, int64_t channels, const AutoencoderConfig& config)
      : block_1(group, name + ".block_1", channels, channels, config.norm_num_groups),
        block_2(group, name + ".block_2", channels, channels, config.norm_num_groups) {
    if (config.mid_block_add_attention)
      attn_1.emplace(group, name + ".attn_1", channels, config.norm_num_groups);
  }

  at::Tensor forward(const at::Tensor& x) const {
    const at::Tensor h = block_1.forward(x);
    return block_2.forward(attn_1 ? attn_1->forward(h) : h);
  }

  ResnetBlock block_1, block_2;
  std::optional<AttnBlock> attn_1;
};

/// The resnets of one resolution, then the convolution that changes it (absent in the last).
struct Level {
  at::Tensor forward(at::Tensor h) const {
    for (const ResnetBlock& resnet : block) h = resnet.forward(h);
    return h;
  }

  std::deque<ResnetBlock> block;
  std::optional<Conv> resample;
};

struct Encoder {
  Encoder(nn::ParameterGroup& group, const AutoencoderConfig& config)
      : conv_in(group, "encoder.conv_in", config.in_channels, config.block_out_channels.front()),
        mid(group, "encoder.mid", config.block_out_channels.back(), config),
        norm_out(group, "encoder.norm_out", config.block_out_channels.back(), config.norm_num_groups),
        conv_out(group, "encoder.conv_out", config.block_out_channels.back(), 2 * config.latent_channels) {
    const auto& channels = config.block_out_channels;
    for (size_t i = 0; i < channels.size(); ++i) {
      const std::string name = "encoder.down." + std::to_string(i);
      Level& level = down.emplace_back();
      for (int64_t j = 0; j < config.layers_per_block; ++j) {
        const int64_t in = j > 0 || i == 0 ? channels[i] : channels[i - 1];
        level.block.emplace_back(group, name + ".block." + std::to_string(j), in, channels[i],
                                 config.norm_num_groups);
      }
      if (i + 1 < channels.size()) {
        level.resample.emplace(group, name + ".downsample.conv", channels[i], channels[i], 3, 2);
      }
    }
  }

  at::Tensor forward(const at::Tensor& images) const {
    at::Tensor h = conv_in.forward(images);
    for (const Level& level : down) {
      h = level.forward(h);
      if (level.resample) h = level.resample->forward(h);
    }
    return conv_out.forward(norm_out.forward_silu(mid.forward(h)));
  }

  Conv conv_in;
  std::deque<Level> down;
  Mid mid;
  Norm norm_out;
  Conv conv_out;
};

struct Decoder {
  Decoder(nn::ParameterGroup& group, const AutoencoderConfig& config)
      : conv_in(group, "decoder.conv_in", config.latent_channels, config.block_out_channels.back()),
        mid(group, "decoder.mid", config.block_out_channels.back(), config),
        norm_out(group, "decoder.norm_out", config.block_out_channels.front(), config.norm_num_groups),
        conv_out(group, "decoder.conv_out", config.block_out_channels.front(), config.in_channels) {
    const auto& channels = config.block_out_channels;
    for (size_t i = channels.size(); i-- > 0;) {
      const std::string name = "decoder.up." + std::to_string(i);
      Level& level = up.emplace_back();
      for (int64_t j = 0; j <= config.layers_per_block; ++j) {
        const int64_t in = j > 0 || i + 1 == channels.size() ? channels[i] : channels[i + 1];
        level.block.emplace_back(group, name + ".block." + std::to_string(j), in, channels[i],
                                 config.norm_num_groups);
      }
      if (i > 0) level.resample.emplace(group, name + ".upsample.conv", channels[i], channels[i]);
    }
  }

  at::Tensor forward(const at::Tensor& latents) const {
    at::Tensor h = mid.forward(conv_in.forward(latents));
    for (const Level& level : up) {
      h = level.forward(h);
      if (level.resample)
        h = level.resample->forward(at::upsample_nearest2d(h, {2 * h.size(2), 2 * h.size(3)}));
    }
    return conv_out.forward(norm_out.forward_silu(h));
  }

  Conv conv_in;
  Mid mid;
  std::deque<Level> up;  // from the smallest picture to the largest
  Norm norm_out;
  Conv conv_out;
};

}  // namespace

struct Autoencoder::Impl {
  explicit Impl(const AutoencoderConfig& config)
      : config(config), encoder(root, this->config), decoder(root, this->config) {
    const int64_t channels = config.latent_channels;
    if (config.use_quant_conv) quant_conv.emplace(root, "quant_conv", 2 * channels, 2 * channels, 1);
    if (config.use_post_quant_conv) post_quant_conv.emplace(root, "post_quant_conv", channels, channels, 1);
  }

  const AutoencoderConfig config;
  nn::ParameterGroup root;
  Encoder encoder;
  Decoder decoder;
  std::optional<Conv> quant_conv, post_quant_conv;
};

Autoencoder::Autoencoder(const AutoencoderConfig& config) : impl_(std::make_unique<Impl>(config)) {}
Autoencoder::~Autoencoder() = default;
const std::vector<nn::Parameter*>& Autoencoder::parameters() const { return impl_->root.parameters; }

Autoencoder::Posterior Autoencoder::encode(const at::Tensor& images) {
  const at::NoGradGuard no_grad;
  const int64_t f = impl_->config.downsampling();
  check(images.dim() == 4 && images.size(1) == impl_->config.in_channels && images.size(2) % f == 0 &&
            images.size(3) % f == 0,
        "images to encode must be [B, channels, H, W] with H and W multiples of the downsampling");
  at::Tensor moments = impl_->encoder.forward(images);
  if (impl_->quant_conv) moments = impl_->quant_conv->forward(moments);
  const auto parts = moments.chunk(2, 1);
  return {.mean = parts[0].contiguous(), .logvar = parts[1].clamp(-30.0, 20.0).contiguous()};
}

at::Tensor Autoencoder::decode(const at::Tensor& latents) {
  const at::NoGradGuard no_grad;
  check(latents.dim() == 4 && latents.size(1) == impl_->config.latent_channels,
        "latents to decode must be [B, latent channels, H/f, W/f]");
  const at::Tensor h = impl_->post_quant_conv ? impl_->post_quant_conv->forward(latents) : latents;
  return impl_->decoder.forward(h).contiguous();
}

}  // namespace flowshard::models
