// CLIP's text tower, the source of FLUX's pooled prompt vector. Names follow transformers' CLIPTextModel.
// Shapes: B batch, L tokens, D hidden size. Frozen: forward only, without autograd.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor_names.h"
#include "nn/linear.h"

namespace flowshard::models {

struct ClipTextConfig {
  int64_t vocab_size = 49408;
  int64_t hidden_size = 768;
  int64_t intermediate_size = 3072;
  int64_t num_hidden_layers = 12;
  int64_t num_attention_heads = 12;
  int64_t max_position_embeddings = 77;
  double layer_norm_eps = 1e-5;
  std::string hidden_act = "quick_gelu";
  int64_t eos_token_id = 49407;

  /// Reads a transformers config.json. Throws ConfigError naming file and key if it is absent or does not
  /// fit.
  static ClipTextConfig from_file(const std::filesystem::path& config_json);
};

/// The keys of a transformers CLIPTextModel, without the prefix "text_model.".
TensorNames clip_text_names(const ClipTextConfig& config);

class ClipTextModel {
 public:
  explicit ClipTextModel(const ClipTextConfig& config);
  ~ClipTextModel();

  /// ids [B, L] int64 -> the final-norm hidden state at the first end token, [B, D].
  at::Tensor forward(const at::Tensor& ids);

  const std::vector<nn::Parameter*>& parameters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace flowshard::models
