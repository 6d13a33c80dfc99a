// From a prompt to what the transformer reads: T5's token vectors and CLIP's pooled vector.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/weights.h"
#include "model_folder/model_folder.h"

namespace flowshard {

struct Conditioning {
  at::Tensor txt;  // [1, T, context_in_dim]
  at::Tensor y;    // [1, vec_in_dim]
};

/// The words of a prompt that did not fit; "" if all did.
struct TruncatedWords {
  std::string clip, t5;
};

/// Where the text encoders' weights are if not in the model folder.
struct TextEncoderWeights {
  std::optional<checkpoint::Weights> clip, t5;
};

/// Both tokenizers and both text encoders of a model folder. One thread at a time.
class TextConditioner {
 public:
  /// Opens everything and checks that the weights fit the encoders. Takes no memory for them yet.
  explicit TextConditioner(const ModelFolder& folder, const TextEncoderWeights& weights = {});
  ~TextConditioner();

  /// The encoders' weights, for encode(); again after unload(). `options`: device and dtype.
  void load(at::TensorOptions options);
  void unload();
  bool is_loaded() const;

  /// CLIP sees the prompt in 77 tokens, T5 in `max_sequence_length`; padding is attended, as in the reference
  /// pipelines. Throws ConfigError if the prompt is not UTF-8.
  Conditioning encode(const std::string& prompt, int64_t max_sequence_length);

  /// Needs no weights.
  TruncatedWords truncated_words(const std::string& prompt, int64_t max_sequence_length) const;

  const std::vector<nn::Parameter*>& clip_parameters() const;
  const std::vector<nn::Parameter*>& t5_parameters() const;

  int64_t pooled_size() const;
  int64_t hidden_size() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace flowshard
