// Files of the official code (https://github.com/black-forest-labs/flux): one safetensors file whose keys are
// our parameter names, and no configuration beside it.
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "core/error.h"
#include "core/json_config.h"
#include "models/flow_transformer/flow_transformer.h"

namespace flowshard::models {
namespace {

constexpr int64_t kReleasedHeadDim = 128;
constexpr const char* kAxesKey = "axes_dim";

// Size `dim` of the tensor under `key`.
int64_t size_of(const TensorListing& file, const std::string& key, size_t dim) {
  const auto found = file.shapes.find(key);
  if (found == file.shapes.end()) {
    throw CheckpointError("{}: it lacks \"{}\", from which the transformer's configuration is read",
                          file.source, key);
  }
  // A tensor without elements may claim any size.
  if (dim >= found->second.size() || found->second[dim] < 1 || found->second[dim] > kMaxSize) {
    throw CheckpointError("{}: \"{}\" has the shape [{}], which no FLUX transformer has", file.source, key,
                          fmt::join(found->second, ", "));
  }
  return found->second[dim];
}

// The number of blocks called PREFIX0, PREFIX1, ...: one more than the highest number.
int64_t count_blocks(const TensorListing& file, const std::string& prefix) {
  int64_t count = 0;
  while (true) {
    const std::string block = fmt::format("{}{}.", prefix, count);
    const auto first = file.shapes.lower_bound(block);
    if (first == file.shapes.end() || !first->first.starts_with(block)) return count;
    ++count;
  }
}

std::vector<int64_t> axes_of(const TensorListing& file, int64_t head_dim) {
  const auto entry = file.metadata.find(kAxesKey);
  if (entry == file.metadata.end()) {
    if (head_dim == kReleasedHeadDim) return {16, 56, 56};
    throw CheckpointError(
        "{}: its attention heads have {} dimensions; how the axes share them is known for {} only: add the "
        "metadata "
        "\"{}\" (three even numbers that add up to {}), or use the diffusers folder",
        file.source, head_dim, kReleasedHeadDim, kAxesKey, head_dim);
  }
  std::vector<int64_t> axes;
  std::istringstream text(entry->second);
  char comma = ',';
  for (int64_t axis = 0; comma == ',' && text >> axis; text >> comma) {
    axes.push_back(axis > 0 && axis <= head_dim && axis % 2 == 0 ? axis : 0);
    comma = 0;
  }
  const bool fits = text.eof() && comma == 0 && axes.size() == 3 &&
                    std::ranges::find(axes, 0) == axes.end() &&
                    std::accumulate(axes.begin(), axes.end(), int64_t{0}) == head_dim;
  if (!fits) {
    throw CheckpointError(
        "{}: the metadata \"{}\" is \"{}\": three even numbers that add up to {} are wanted", file.source,
        kAxesKey, entry->second, head_dim);
  }
  return axes;
}

}  // namespace

bool is_flow_transformer_bfl(const TensorListing& file) {
  return file.has("img_in.weight") && file.has("txt_in.weight") && file.has("final_layer.linear.weight") &&
         file.has("vector_in.in_layer.weight");
}

bool is_flow_transformer_diffusers(const TensorListing& file) {
  return file.has("x_embedder.weight") && file.has("context_embedder.weight") &&
         file.has("time_text_embed.timestep_embedder.linear_1.weight");
}

FlowTransformerConfig FlowTransformerConfig::from_bfl(const TensorListing& file) {
  FlowTransformerConfig config;
  config.hidden_size = size_of(file, "img_in.weight", 0);
  config.in_channels = size_of(file, "img_in.weight", 1);
  config.out_channels = size_of(file, "final_layer.linear.weight", 0);
  config.context_in_dim = size_of(file, "txt_in.weight", 1);
  config.vec_in_dim = size_of(file, "vector_in.in_layer.weight", 1);
  config.guidance_embed = file.has("guidance_in.in_layer.weight");
  config.depth = count_blocks(file, "double_blocks.");
  config.depth_single_blocks = count_blocks(file, "single_blocks.");
  int64_t head_dim = 0;
  if (config.depth > 0) {
    head_dim = size_of(file, "double_blocks.0.img_attn.norm.query_norm.scale", 0);
    config.mlp_hidden_dim = size_of(file, "double_blocks.0.img_mlp.0.weight", 0);
  } else {
    head_dim = size_of(file, "single_blocks.0.norm.query_norm.scale", 0);
    config.mlp_hidden_dim = size_of(file, "single_blocks.0.linear2.weight", 1) - config.hidden_size;
  }
  if (config.hidden_size % head_dim != 0 || config.mlp_hidden_dim < 1 || config.out_channels % 4 != 0) {
    throw CheckpointError(
        "{}: its shapes contradict each other: hidden size {}, heads of {}, MLP width {}, {} output channels",
        file.source, config.hidden_size, head_dim, config.mlp_hidden_dim, config.out_channels);
  }
  config.num_heads = config.hidden_size / head_dim;
  config.axes_dim = axes_of(file, head_dim);
  return config;
}

std::map<std::string, std::string> FlowTransformerConfig::bfl_metadata() const {
  return {{kAxesKey, fmt::format("{}", fmt::join(axes_dim, ","))}};
}

std::string FlowTransformerConfig::to_diffusers() const {
  if (mlp_hidden_dim != 4 * hidden_size) {
    throw ConfigError("diffusers has no FLUX transformer with an MLP width of {}: it must be 4 x {}",
                      mlp_hidden_dim, hidden_size);
  }
  const nlohmann::ordered_json config = {{"_class_name", "FluxTransformer2DModel"},
                                         {"attention_head_dim", head_dim()},
                                         {"axes_dims_rope", axes_dim},
                                         {"guidance_embeds", guidance_embed},
                                         {"in_channels", in_channels},
                                         {"joint_attention_dim", context_in_dim},
                                         {"num_attention_heads", num_heads},
                                         {"num_layers", depth},
                                         {"num_single_layers", depth_single_blocks},
                                         {"out_channels", out_channels},
                                         {"patch_size", 1},
                                         {"pooled_projection_dim", vec_in_dim}};
  return config.dump(2) + "\n";
}

TensorNames flow_transformer_bfl_names(const FlowTransformerConfig& config) {
  FlowTransformer model(config);
  TensorNames names;
  for (const nn::Parameter* parameter : model.parameters()) {
    names.push_back({.parameter = parameter->name, .key = parameter->name});
  }
  return names;
}

}  // namespace flowshard::models
