// The shape of CLIP's text tower, as a transformers config.json gives it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace flowshard::models {

struct ClipTextConfig {
  int64_t vocab_size = 49408;
  int64_t hidden_size = 768;
  int64_t intermediate_size = 3072;
  int64_t num_hidden_layers = 12;
  int64_t num_attention_heads = 12;
  int64_t max_position_embeddings = 77;
  double layer_norm_eps = 1e-5;
  std::string hidden_act = "quick_gelu";  // or "gelu"
  int64_t eos_token_id = 49407;           // 2, as in FLUX.1's file, means the highest id of each sequence

  /// Reads a transformers config.json. Throws ConfigError naming file and key if it is absent or does not
  /// fit.
  static ClipTextConfig from_file(const std::filesystem::path& config_json);
};

}  // namespace flowshard::models
