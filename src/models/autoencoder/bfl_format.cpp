// Autoencoder files of the official code (ae.safetensors) and of latent diffusion: keys are our parameter
// names, and there is no configuration beside them.
#include <fmt/ranges.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"
#include "core/json_config.h"
#include "models/autoencoder/autoencoder.h"

namespace flowshard::models {
namespace {

constexpr const char* kGroups = "norm_num_groups";
constexpr const char* kScaling = "scaling_factor";
constexpr const char* kShift = "shift_factor";

int64_t size_of(const TensorListing& file, const std::string& key, size_t dim) {
  const auto found = file.shapes.find(key);
  if (found == file.shapes.end()) {
    throw CheckpointError("{}: it lacks \"{}\", from which the autoencoder's configuration is read",
                          file.source, key);
  }
  // A tensor without elements may claim any size.
  if (dim >= found->second.size() || found->second[dim] < 1 || found->second[dim] > kMaxSize) {
    throw CheckpointError("{}: \"{}\" has the shape [{}], which no autoencoder has", file.source, key,
                          fmt::join(found->second, ", "));
  }
  return found->second[dim];
}

std::optional<double> number(const TensorListing& file, const char* key) {
  const auto entry = file.metadata.find(key);
  if (entry == file.metadata.end()) return std::nullopt;
  const std::string& text = entry->second;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    throw CheckpointError("{}: the metadata \"{}\" is \"{}\", which is no number", file.source, key, text);
  }
  return value;
}

}  // namespace

bool is_autoencoder_bfl(const TensorListing& file) {
  return file.has("encoder.conv_in.weight") && file.has("decoder.conv_in.weight") &&
         file.has("decoder.up.0.block.0.conv1.weight");
}

bool is_autoencoder_diffusers(const TensorListing& file) {
  return file.has("encoder.conv_in.weight") && file.has("decoder.up_blocks.0.resnets.0.conv1.weight");
}

AutoencoderConfig AutoencoderConfig::from_bfl(const TensorListing& file) {
  AutoencoderConfig config;
  config.block_out_channels.clear();
  const auto conv1 = [](size_t level, int64_t block) {
    return fmt::format("encoder.down.{}.block.{}.conv1.weight", level, block);
  };
  for (size_t level = 0; level == 0 || file.has(conv1(level, 0)); ++level) {
    config.block_out_channels.push_back(size_of(file, conv1(level, 0), 0));
  }
  if (config.block_out_channels.size() > 16) {
    throw CheckpointError("{}: {} levels: at most 16 are supported", file.source,
                          config.block_out_channels.size());
  }
  config.layers_per_block = 1;
  while (file.has(conv1(0, config.layers_per_block))) ++config.layers_per_block;
  config.in_channels = size_of(file, "encoder.conv_in.weight", 1);
  config.latent_channels = size_of(file, "decoder.conv_in.weight", 1);
  config.use_quant_conv = file.has("quant_conv.weight");
  config.use_post_quant_conv = file.has("post_quant_conv.weight");
  config.mid_block_add_attention = file.has("decoder.mid.attn_1.q.weight");

  const double groups = number(file, kGroups).value_or(32);
  config.norm_num_groups = groups >= 1 && groups <= 1e6 ? static_cast<int64_t>(groups) : 0;
  for (const int64_t channels : config.block_out_channels) {
    if (config.norm_num_groups < 1 || channels % config.norm_num_groups != 0) {
      throw CheckpointError(
          "{}: {} norm groups do not divide {} channels: add the metadata \"{}\", or use the diffusers "
          "folder",
          file.source, config.norm_num_groups, channels, kGroups);
    }
  }
  const auto scaling = number(file, kScaling), shift = number(file, kShift);
  if (!scaling && config.latent_channels != 16) {
    throw CheckpointError(
        "{}: it has {} latent channels; their scaling is known for FLUX.1's 16 only: add the metadata \"{}\" "
        "and "
        "\"{}\", or use the diffusers folder",
        file.source, config.latent_channels, kScaling, kShift);
  }
  if (scaling && !(*scaling > 0)) {
    throw CheckpointError("{}: the metadata \"{}\" is {}: it must be above 0", file.source, kScaling,
                          *scaling);
  }
  config.scaling_factor = scaling.value_or(config.scaling_factor);
  config.shift_factor = shift.value_or(config.shift_factor);
  return config;
}

std::map<std::string, std::string> AutoencoderConfig::bfl_metadata() const {
  return {{kGroups, fmt::format("{}", norm_num_groups)},
          {kScaling, fmt::format("{}", scaling_factor)},
          {kShift, fmt::format("{}", shift_factor)}};
}

std::string AutoencoderConfig::to_diffusers() const {
  const size_t levels = block_out_channels.size();
  const nlohmann::ordered_json config = {
      {"_class_name", "AutoencoderKL"},
      {"act_fn", "silu"},
      {"block_out_channels", block_out_channels},
      {"down_block_types", std::vector<std::string>(levels, "DownEncoderBlock2D")},
      {"force_upcast", true},
      {"in_channels", in_channels},
      {"latent_channels", latent_channels},
      {"layers_per_block", layers_per_block},
      {"mid_block_add_attention", mid_block_add_attention},
      {"norm_num_groups", norm_num_groups},
      {"out_channels", in_channels},
      {"scaling_factor", scaling_factor},
      {"shift_factor", shift_factor},
      {"up_block_types", std::vector<std::string>(levels, "UpDecoderBlock2D")},
      {"use_post_quant_conv", use_post_quant_conv},
      {"use_quant_conv", use_quant_conv}};
  return config.dump(2) + "\n";
}

TensorNames autoencoder_bfl_names(const AutoencoderConfig& config) {
  const Autoencoder model(config);
  TensorNames names;
  for (const nn::Parameter* parameter : model.parameters()) {
    names.push_back({.parameter = parameter->name, .key = parameter->name});
  }
  return names;
}

std::vector<int64_t> autoencoder_diffusers_shape(const std::string& diffusers_key,
                                                 std::vector<int64_t> shape) {
  if (diffusers_key.find(".attentions.0.to_") != std::string::npos && shape.size() == 4) shape.resize(2);
  return shape;
}

}  // namespace flowshard::models
