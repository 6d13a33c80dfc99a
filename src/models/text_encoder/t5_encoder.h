// The encoder half of T5 v1.1, the source of FLUX's text tokens. Names follow transformers' T5EncoderModel.
// Shapes: B batch, L tokens, D model width. Frozen: forward only, without autograd. No attention mask: pad
// tokens attend and are attended, as in the FLUX reference pipelines. Used by one thread at a time.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <vector>

#include "core/tensor_names.h"
#include "models/text_encoder/t5_config.h"
#include "nn/parameter.h"

namespace flowshard::models {

/// The keys of a transformers T5EncoderModel. The embedding is tied and stored as "shared.weight", as
/// "encoder.embed_tokens.weight" or as both: the second is read only if `stored_keys` lack the first.
TensorNames t5_names(const T5Config& config, const std::vector<std::string>& stored_keys = {});

/// Keys that a file may hold beside t5_names.
inline const std::vector<std::string> kT5IgnoredKeys = {"encoder.embed_tokens.weight"};

/// The bucket of each relative position -(length - 1) ... length - 1 (key minus query), [2 * length - 1]
/// int64. Half of the buckets are for keys that follow; in each half the near offsets have one bucket each
/// and the far ones share buckets that widen logarithmically up to max_distance.
at::Tensor t5_relative_buckets(int64_t length, int64_t num_buckets, int64_t max_distance);

class T5Encoder {
 public:
  explicit T5Encoder(const T5Config& config);
  ~T5Encoder();

  /// ids [B, L] int64 -> last hidden state [B, L, D] in the dtype of the weights. Throws ConfigError if an id
  /// is outside the vocabulary.
  at::Tensor forward(const at::Tensor& ids);

  const std::vector<nn::Parameter*>& parameters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace flowshard::models
