// Configuration and file keys of diffusers' AutoencoderKL.

#include "core/json_config.h"
#include "models/autoencoder/autoencoder.h"

namespace flowshard::models {
namespace {

void check_blocks(const JsonConfig& file, std::string_view key, size_t num_levels,
                  const std::string& supported) {
  const std::vector<std::string> blocks = file.texts(key);
  if (blocks.size() != num_levels) file.reject(key, "must have as many entries as block_out_channels");
  for (const std::string& block : blocks) {
    if (block != supported) file.reject(key, "only " + supported + " is supported");
  }
}

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

AutoencoderConfig AutoencoderConfig::from_file(const std::filesystem::path& config_json) {
  const JsonConfig file(config_json);
  file.one_of("_class_name", {"AutoencoderKL"});
  file.one_of("act_fn", {"silu"}, "silu");
  for (const char* key : {"latents_mean", "latents_std"}) {
    if (file.has(key)) file.reject(key, "only scaling_factor and shift_factor are supported");
  }

  AutoencoderConfig config;
  config.block_out_channels = file.sizes("block_out_channels");
  config.layers_per_block = file.depth("layers_per_block");
  config.in_channels = file.size("in_channels");
  config.latent_channels = file.size("latent_channels");
  config.norm_num_groups = file.size("norm_num_groups", 32);
  config.scaling_factor = file.positive("scaling_factor");
  config.shift_factor = file.number("shift_factor", 0.0);
  config.use_quant_conv = file.boolean("use_quant_conv", true);
  config.use_post_quant_conv = file.boolean("use_post_quant_conv", true);
  config.mid_block_add_attention = file.boolean("mid_block_add_attention", true);

  check_blocks(file, "down_block_types", config.block_out_channels.size(), "DownEncoderBlock2D");
  check_blocks(file, "up_block_types", config.block_out_channels.size(), "UpDecoderBlock2D");
  if (file.size("out_channels") != config.in_channels) file.reject("out_channels", "must equal in_channels");
  for (const int64_t channels : config.block_out_channels) {
    if (channels % config.norm_num_groups != 0) {
      file.reject("norm_num_groups", "must divide every entry of block_out_channels");
    }
  }
  if (config.block_out_channels.size() > 16)
    file.reject("block_out_channels", "at most 16 levels are supported");
  return config;
}

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
