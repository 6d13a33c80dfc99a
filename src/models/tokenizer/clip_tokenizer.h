// CLIP's byte-pair encoding, as transformers' CLIPTokenizer does it.
// Reference: https://github.com/openai/CLIP/blob/main/clip/simple_tokenizer.py
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace flowshard::models {

struct TokenIds {
  std::vector<int64_t> ids;  // padded to the length asked for
  std::string truncated;     // the text that did not fit; empty if all did
};

class ClipTokenizer {
 public:
  /// Reads vocab.json and merges.txt from a diffusers `tokenizer` folder, or tokenizer.json if these are
  /// absent. Throws ConfigError naming the missing or malformed file.
  explicit ClipTokenizer(const std::filesystem::path& folder);
  ~ClipTokenizer();

  /// <|startoftext|> ids <|endoftext|>, cut to `length` (the end token is kept), then padded with the pad
  /// token. Throws ConfigError if `text` is not valid UTF-8. Thread-safe.
  TokenIds encode(const std::string& text, int64_t length = 77) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace flowshard::models
