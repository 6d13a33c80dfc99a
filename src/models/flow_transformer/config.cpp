#include "models/flow_transformer/config.h"

#include <fmt/format.h>

#include <numeric>

#include "core/json_config.h"

namespace flowshard::models {

FlowTransformerConfig FlowTransformerConfig::from_diffusers(const std::filesystem::path& config_json) {
  const JsonConfig file(config_json);
  file.one_of("_class_name", {"FluxTransformer2DModel"});
  FlowTransformerConfig config;
  config.in_channels = file.size("in_channels", 64);
  config.out_channels = file.size("out_channels", config.in_channels);
  config.vec_in_dim = file.size("pooled_projection_dim", 768);
  config.context_in_dim = file.size("joint_attention_dim", 4096);
  config.num_heads = file.size("num_attention_heads", 24);
  config.hidden_size = config.num_heads * file.size("attention_head_dim", 128);
  config.mlp_hidden_dim = 4 * config.hidden_size;
  config.depth = file.depth("num_layers", 19);
  config.depth_single_blocks = file.depth("num_single_layers", 38);
  if (file.has("axes_dims_rope")) config.axes_dim = file.sizes("axes_dims_rope");
  config.guidance_embed = file.boolean("guidance_embeds", false);

  if (file.size("patch_size", 1) != 1)
    file.reject("patch_size", "latents are packed outside the transformer: it must be 1");
  if (config.out_channels % 4 != 0)
    file.reject("in_channels", "a token is a 2x2 patch: it must be a multiple of 4");
  if (config.axes_dim.size() != 3) file.reject("axes_dims_rope", "it must have three entries");
  for (int64_t dim : config.axes_dim) {
    if (dim % 2 != 0) file.reject("axes_dims_rope", "each entry must be even");
  }
  const int64_t axes = std::accumulate(config.axes_dim.begin(), config.axes_dim.end(), int64_t{0});
  if (axes != config.head_dim()) {
    file.reject("axes_dims_rope",
                fmt::format("its entries must add up to attention_head_dim, {}", config.head_dim()));
  }
  return config;
}

}  // namespace flowshard::models
