// CLIP's byte-pair encoding, as transformers' CLIPTokenizer does it.
// Reference: https://github.com/openai/CLIP/blob/main/clip/simple_tokenizer.py
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "models/tokenizer/token_ids.h"

namespace flowshard::models {

class ClipTokenizer {
 public:
  /// Reads a diffusers `tokenizer` folder as the reference does: tokenizer.json if it is there, else
  /// vocab.json and merges.txt; special tokens from tokenizer_config.json and its companions. Throws
  /// ConfigError naming the missing or malformed file.
  explicit ClipTokenizer(const std::filesystem::path& folder);
  ~ClipTokenizer();

  /// <|startoftext|> ids <|endoftext|>, cut to `length` (the end token is kept), then padded with the pad
  /// token. Throws ConfigError if `text` is not valid UTF-8 or `length` is below 2. Thread-safe.
  TokenIds encode(const std::string& text, int64_t length = 77) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace flowshard::models
