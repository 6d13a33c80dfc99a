// T5's sentencepiece tokenizer, as transformers' T5Tokenizer does it.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "models/tokenizer/clip_tokenizer.h"

namespace flowshard::models {

class T5Tokenizer {
 public:
  /// Reads spiece.model from a diffusers `tokenizer_2` folder. Throws ConfigError naming the missing or
  /// malformed file.
  explicit T5Tokenizer(const std::filesystem::path& folder);
  ~T5Tokenizer();

  /// ids </s>, cut to `length` (</s> is kept), then padded with <pad>.
  /// Throws ConfigError if `text` is not valid UTF-8. Thread-safe.
  TokenIds encode(const std::string& text, int64_t length) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace flowshard::models
