#include <fmt/format.h>

#include "models/flow_transformer/config.h"

namespace flowshard::models {
namespace {

/// Collects parts; sizes are those of dimension 0.
struct NameList {
  TensorNames parts;

  void tensor(const std::string& parameter, const std::string& key) { parts.push_back({parameter, key}); }
  void linear(const std::string& parameter, const std::string& key) {
    tensor(parameter + ".weight", key + ".weight");
    tensor(parameter + ".bias", key + ".bias");
  }
  /// Several stored linears, one below the other, are one fused linear.
  void fused(const std::string& parameter,
             const std::vector<std::pair<std::string, int64_t>>& keys_and_rows) {
    int64_t row = 0;
    for (const auto& [key, rows] : keys_and_rows) {
      parts.push_back({parameter + ".weight", key + ".weight", row, rows});
      parts.push_back({parameter + ".bias", key + ".bias", row, rows});
      row += rows;
    }
  }
  void embedder(const std::string& parameter, const std::string& key) {
    linear(parameter + ".in_layer", key + ".linear_1");
    linear(parameter + ".out_layer", key + ".linear_2");
  }
};

void add_double_block(NameList& names, const std::string& ours, const std::string& theirs, int64_t hidden) {
  struct Stream {
    const char *ours, *modulation, *q, *k, *v, *norm_q, *norm_k, *proj, *mlp;
  };
  const Stream streams[] = {
      {"img", "norm1", "to_q", "to_k", "to_v", "norm_q", "norm_k", "to_out.0", "ff"},
      {"txt", "norm1_context", "add_q_proj", "add_k_proj", "add_v_proj", "norm_added_q", "norm_added_k",
       "to_add_out", "ff_context"},
  };
  for (const Stream& s : streams) {
    const std::string attn = theirs + "attn.";
    names.linear(ours + s.ours + "_mod.lin", theirs + s.modulation + ".linear");
    names.fused(ours + s.ours + "_attn.qkv",
                {{attn + s.q, hidden}, {attn + s.k, hidden}, {attn + s.v, hidden}});
    names.tensor(ours + s.ours + "_attn.norm.query_norm.scale", attn + s.norm_q + ".weight");
    names.tensor(ours + s.ours + "_attn.norm.key_norm.scale", attn + s.norm_k + ".weight");
    names.linear(ours + s.ours + "_attn.proj", attn + s.proj);
    names.linear(ours + s.ours + "_mlp.0", theirs + s.mlp + ".net.0.proj");
    names.linear(ours + s.ours + "_mlp.2", theirs + s.mlp + ".net.2");
  }
}

void add_single_block(NameList& names, const std::string& ours, const std::string& theirs,
                      const FlowTransformerConfig& config) {
  const int64_t hidden = config.hidden_size;
  names.linear(ours + "modulation.lin", theirs + "norm.linear");
  names.fused(ours + "linear1", {{theirs + "attn.to_q", hidden},
                                 {theirs + "attn.to_k", hidden},
                                 {theirs + "attn.to_v", hidden},
                                 {theirs + "proj_mlp", config.mlp_hidden_dim}});
  names.linear(ours + "linear2", theirs + "proj_out");
  names.tensor(ours + "norm.query_norm.scale", theirs + "attn.norm_q.weight");
  names.tensor(ours + "norm.key_norm.scale", theirs + "attn.norm_k.weight");
}

}  // namespace

TensorNames flow_transformer_diffusers_names(const FlowTransformerConfig& config) {
  NameList names;
  names.linear("img_in", "x_embedder");
  names.linear("txt_in", "context_embedder");
  names.embedder("time_in", "time_text_embed.timestep_embedder");
  names.embedder("vector_in", "time_text_embed.text_embedder");
  if (config.guidance_embed) names.embedder("guidance_in", "time_text_embed.guidance_embedder");
  for (int64_t i = 0; i < config.depth; ++i) {
    add_double_block(names, fmt::format("double_blocks.{}.", i), fmt::format("transformer_blocks.{}.", i),
                     config.hidden_size);
  }
  for (int64_t i = 0; i < config.depth_single_blocks; ++i) {
    add_single_block(names, fmt::format("single_blocks.{}.", i),
                     fmt::format("single_transformer_blocks.{}.", i), config);
  }
  // Stored (scale, shift); the official code has (shift, scale).
  const int64_t hidden = config.hidden_size;
  for (const char* kind : {".weight", ".bias"}) {
    const std::string parameter = std::string("final_layer.adaLN_modulation.1") + kind;
    const std::string key = std::string("norm_out.linear") + kind;
    names.parts.push_back({parameter, key, 0, hidden, hidden});
    names.parts.push_back({parameter, key, hidden, hidden, 0});
  }
  names.linear("final_layer.linear", "proj_out");
  return names.parts;
}

}  // namespace flowshard::models
