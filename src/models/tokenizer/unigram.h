// A unigram language model over pieces: a word becomes the pieces with the highest sum of scores.
// Immutable after construction, so thread-safe.
// Reference: https://arxiv.org/abs/1804.10959 and tokenizers, src/models/unigram
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "models/tokenizer/vocabulary.h"

namespace flowshard::models {

struct ScoredPiece {
  std::string text;
  double score;
};

class Unigram {
 public:
  /// The id of a piece is its place. Characters that no piece covers become `unknown_id`, one for a run of
  /// them.
  Unigram(std::vector<ScoredPiece> pieces, int64_t unknown_id);

  /// Appends the ids of `word`, which is valid UTF-8, to `ids`.
  void encode(std::string_view word, std::vector<int64_t>& ids) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  // The best way to write the word up to some byte.
  struct Best {
    double score = 0;
    size_t start = 0;  // where its last piece starts
    int64_t id = 0;    // and its id
    bool reached = false;
  };

  std::vector<Best> best_paths(std::string_view word) const;

  std::vector<double> scores_;
  Vocabulary vocabulary_;
  std::unordered_map<uint64_t, uint32_t> children_;  // of the trie of pieces: (node << 8 | byte) to node
  std::vector<int64_t> node_ids_;                    // the piece that ends at a node, or -1
  int64_t unknown_id_;
  double unknown_score_;
};

}  // namespace flowshard::models
