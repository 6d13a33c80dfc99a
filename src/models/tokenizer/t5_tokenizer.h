// T5's tokenizer, as transformers' T5Tokenizer does it: the pieces of a sentencepiece model, but neither its
// normalization nor its treatment of spaces (docs/numerics.md, "Tokenizers").
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "models/tokenizer/token_ids.h"

namespace flowshard::models {

class T5Tokenizer {
 public:
  /// Reads a diffusers `tokenizer_2` folder as the reference does: tokenizer.json if it is there, else
  /// spiece.model; special tokens from tokenizer_config.json and its companions. Throws ConfigError naming
  /// the missing or malformed file.
  explicit T5Tokenizer(const std::filesystem::path& folder);
  ~T5Tokenizer();

  /// ids </s>, cut to `length` (</s> is kept), then padded with <pad>.
  /// Throws ConfigError if `text` is not valid UTF-8 or `length` is below 1. Thread-safe.
  TokenIds encode(const std::string& text, int64_t length) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace flowshard::models
