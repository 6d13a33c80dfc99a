// The encoder half of T5 v1.1, the source of FLUX's text tokens. Names follow transformers' T5EncoderModel.
// Shapes: B batch, L tokens, D model width. Frozen: forward only, without autograd. No attention mask: pad
// tokens attend and are attended, as in the FLUX reference pipelines.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor_names.h"
#include "nn/linear.h"

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

TensorNames t5_names(const T5Config& config);

class T5Encoder {
 public:
  explicit T5Encoder(const T5Config& config);
  ~T5Encoder();

  /// ids [B, L] int64 -> last hidden state [B, L, D].
  at::Tensor forward(const at::Tensor& ids);

  const std::vector<nn::Parameter*>& parameters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace flowshard::models
