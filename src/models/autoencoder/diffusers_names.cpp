// Keys of diffusers' AutoencoderKL.
#include "models/autoencoder/autoencoder.h"

namespace flowshard::models {
namespace {

void replace_prefix(std::string& name, const std::string& prefix, const std::string& replacement) {
  if (name.starts_with(prefix)) name.replace(0, prefix.size(), replacement);
}

void replace_first(std::string& name, const std::string& part, const std::string& replacement) {
  if (const size_t at = name.find(part); at != std::string::npos) name.replace(at, part.size(), replacement);
}

/// "decoder.up.0.block.1.conv1.weight" -> "decoder.up_blocks.3.resnets.1.conv1.weight" for 4 levels.
std::string diffusers_key(std::string name, size_t num_levels) {
  for (size_t level = 0; level < num_levels; ++level) {
    const std::string number = std::to_string(level);
    const std::string reversed = std::to_string(num_levels - 1 - level);
    replace_prefix(name, "encoder.down." + number + ".", "encoder.down_blocks." + number + ".");
    replace_prefix(name, "decoder.up." + number + ".", "decoder.up_blocks." + reversed + ".");
  }
  static const std::pair<std::string, std::string> kParts[] = {
      {".mid.block_1.", ".mid_block.resnets.0."},
      {".mid.block_2.", ".mid_block.resnets.1."},
      {".mid.attn_1.norm.", ".mid_block.attentions.0.group_norm."},
      {".mid.attn_1.q.", ".mid_block.attentions.0.to_q."},
      {".mid.attn_1.k.", ".mid_block.attentions.0.to_k."},
      {".mid.attn_1.v.", ".mid_block.attentions.0.to_v."},
      {".mid.attn_1.proj_out.", ".mid_block.attentions.0.to_out.0."},
      {".block.", ".resnets."},
      {".nin_shortcut.", ".conv_shortcut."},
      {".downsample.conv.", ".downsamplers.0.conv."},
      {".upsample.conv.", ".upsamplers.0.conv."},
      {".norm_out.", ".conv_norm_out."},
  };
  for (const auto& [official, diffusers] : kParts) replace_first(name, official, diffusers);
  return name;
}

}  // namespace

TensorNames autoencoder_diffusers_names(const AutoencoderConfig& config) {
  const Autoencoder model(config);
  TensorNames names;
  for (const nn::Parameter* parameter : model.parameters()) {
    names.push_back({.parameter = parameter->name,
                     .key = diffusers_key(parameter->name, config.block_out_channels.size())});
  }
  return names;
}

}  // namespace flowshard::models
