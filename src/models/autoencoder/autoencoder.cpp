#include "models/autoencoder/autoencoder.h"

#include <deque>
#include <optional>

#include "core/error.h"
#include "models/autoencoder/bands.h"

namespace flowshard::models {
namespace {

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
  std::optional<Conv2d> resample;
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
    return norm_silu_conv(norm_out, conv_out, mid.forward(h));
  }

  Conv2d conv_in;
  std::deque<Level> down;
  Mid mid;
  GroupNorm norm_out;
  Conv2d conv_out;
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
      if (level.resample) h = upsample_conv(*level.resample, h);
    }
    return norm_silu_conv(norm_out, conv_out, h);
  }

  Conv2d conv_in;
  Mid mid;
  std::deque<Level> up;  // from the smallest picture to the largest
  GroupNorm norm_out;
  Conv2d conv_out;
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
  std::optional<Conv2d> quant_conv, post_quant_conv;
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
