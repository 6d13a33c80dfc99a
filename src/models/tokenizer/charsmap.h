// The character replacements compiled into a sentencepiece model (NFKC and white space for T5), applied as
// the tokenizers library applies them. Immutable after construction, so thread-safe. Format: a little-endian
// u32 with the bytes of the trie, the trie (a double array as darts-clone lays it out), then the
// replacements, each ended by a NUL byte. Reference: https://github.com/huggingface/spm_precompiled and
// tokenizers, src/normalizers/precompiled.rs
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace flowshard::models {

class Charsmap {
 public:
  /// Without bytes the map changes nothing. Throws ConfigError, naming `source`, if the bytes are malformed.
  Charsmap(std::string_view bytes, const std::string& source);

  std::string normalize(std::string_view text) const;

 private:
  std::optional<std::string_view> find(std::string_view chunk) const;

  std::vector<uint32_t> trie_;
  std::string replacements_;
};

}  // namespace flowshard::models
