// CLIP's text tower, the source of FLUX's pooled prompt vector. Names follow transformers' CLIPTextModel.
// Shapes: B batch, L tokens, D hidden size. Frozen: forward only, without autograd. Used by one thread at a
// time.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <vector>

#include "core/tensor_names.h"
#include "models/text_encoder/clip_text_config.h"
#include "nn/parameter.h"

namespace flowshard::models {

/// The keys of a transformers CLIPTextModel. Files written by transformers 4 (FLUX.1's among them), and what
/// later versions load from these and save again, have the prefix "text_model."; new files have none. The
/// names have it if `stored_keys` do.
TensorNames clip_text_names(const ClipTextConfig& config, const std::vector<std::string>& stored_keys = {});

/// Keys that a file may hold beside clip_text_names: a constant table that old versions saved, and the
/// projection into the space that texts and pictures share, which FLUX does not use.
inline const std::vector<std::string> kClipTextIgnoredKeys = {
    "embeddings.position_ids", "text_model.embeddings.position_ids", "text_projection.weight"};

class ClipTextModel {
 public:
  explicit ClipTextModel(const ClipTextConfig& config);
  ~ClipTextModel();

  /// ids [B, L] int64 -> the final-norm hidden state at the first end token (at the first token if there is
  /// none), [B, D] in the dtype of the weights. Throws ConfigError if an id is outside the vocabulary.
  at::Tensor forward(const at::Tensor& ids);

  const std::vector<nn::Parameter*>& parameters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace flowshard::models
