#include "models/autoencoder/autoencoder_config.h"

#include "core/json_config.h"

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

}  // namespace flowshard::models
