// The shape of a T5 encoder, as a transformers config.json gives it.
#pragma once

#include <cstdint>
#include <filesystem>

namespace flowshard::models {

struct T5Config {
  int64_t vocab_size = 32128;
  int64_t d_model = 4096;
  int64_t d_kv = 64;
  int64_t d_ff = 10240;
  int64_t num_layers = 24;
  int64_t num_heads = 64;
  int64_t relative_attention_num_buckets = 32;
  int64_t relative_attention_max_distance = 128;
  double layer_norm_epsilon = 1e-6;

  /// Reads a transformers config.json. Throws ConfigError naming file and key if it is absent or does not
  /// fit.
  static T5Config from_file(const std::filesystem::path& config_json);
};

}  // namespace flowshard::models
