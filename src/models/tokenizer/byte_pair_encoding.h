// CLIP's byte-pair encoding of one word: its bytes as printable characters, the last one marked with </w>,
// merged pair by pair in the order of the merges. Immutable after construction, so thread-safe.
// Reference: https://arxiv.org/abs/1508.07909 and tokenizers, src/models/bpe
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "models/tokenizer/vocabulary.h"

namespace flowshard::models {

/// The tables of a byte-pair encoding.
struct BytePairModel {
  Vocabulary vocabulary;
  std::vector<std::pair<std::string, std::string>> merges;  // the first is merged first
};

/// Reads tokenizer.json if the folder has one, else vocab.json and merges.txt.
BytePairModel read_byte_pair_model(const std::filesystem::path& folder);

class BytePairEncoding {
 public:
  /// Bytes that the vocabulary lacks become `unknown`. Throws ConfigError, naming `folder`, if the vocabulary
  /// lacks `unknown` or a piece of a merge.
  BytePairEncoding(const std::filesystem::path& folder, const BytePairModel& model,
                   const std::string& unknown);

  /// Appends the ids of `word`, which is not empty, to `ids`.
  void encode(std::string_view word, std::vector<int64_t>& ids) const;

 private:
  struct Merge {
    int64_t rank;
    int64_t id;
  };

  const Merge* find_merge(int64_t left, int64_t right) const;

  std::array<int64_t, 256> inner_ids_;  // by byte
  std::array<int64_t, 256> last_ids_;   // the same at the end of the word
  std::unordered_map<uint64_t, Merge> merges_;
};

/// The text of pieces set side by side, with </w> as a space.
std::string byte_pair_text(const std::vector<std::string_view>& pieces);

}  // namespace flowshard::models
