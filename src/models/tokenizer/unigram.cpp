#include "models/tokenizer/unigram.h"

#include <algorithm>
#include <limits>

#include "models/tokenizer/unicode.h"

namespace flowshard::models {
namespace {

constexpr double kUnknownPenalty = 10;  // below the worst piece

}  // namespace

Unigram::Unigram(std::vector<ScoredPiece> pieces, int64_t unknown_id)
    : node_ids_{-1}, unknown_id_(unknown_id) {
  double lowest = std::numeric_limits<double>::infinity();
  for (auto& piece : pieces) {
    const auto id = static_cast<int64_t>(scores_.size());
    scores_.push_back(piece.score);
    lowest = std::min(lowest, piece.score);

    uint64_t node = 0;
    for (const char c : piece.text) {
      const auto [child, is_new] = children_.try_emplace(node << 8 | static_cast<unsigned char>(c),
                                                         static_cast<uint32_t>(node_ids_.size()));
      if (is_new) {
        node_ids_.push_back(-1);
      }
      node = child->second;
    }
    node_ids_[node] = id;
    vocabulary_.set(std::move(piece.text), id);
  }
  node_ids_[0] = -1;  // an empty piece matches nothing
  unknown_score_ = lowest - kUnknownPenalty;
}

std::vector<Unigram::Best> Unigram::best_paths(std::string_view word) const {
  std::vector<Best> best(word.size() + 1);
  for (size_t start = 0; start < word.size();) {
    const double so_far = best[start].score;
    // Sums are in double and the first of equal ones stays, as in the reference: ties are common in words
    // like "aaaaa" and fall differently in float.
    const auto offer = [&](size_t end, int64_t id, double score) {
      if (!best[end].reached || so_far + score > best[end].score) {
        best[end] = {.score = so_far + score, .start = start, .id = id, .reached = true};
      }
    };
    size_t character_end = start;
    unicode::next(word, character_end);
    bool covers_character = false;
    uint64_t node = 0;
    for (size_t position = start; position < word.size();) {
      const auto child = children_.find(node << 8 | static_cast<unsigned char>(word[position]));
      if (child == children_.end()) {
        break;
      }
      node = child->second;
      ++position;
      if (const int64_t id = node_ids_[node]; id >= 0) {
        offer(position, id, scores_[static_cast<size_t>(id)]);
        covers_character = covers_character || position == character_end;
      }
    }
    if (!covers_character) {
      offer(character_end, unknown_id_, unknown_score_);
    }
    start = character_end;
  }
  return best;
}

void Unigram::encode(std::string_view word, std::vector<int64_t>& ids) const {
  const auto best = best_paths(word);
  const auto first = static_cast<std::ptrdiff_t>(ids.size());
  for (size_t end = word.size(); end > 0;) {
    const int64_t id = best[end].id;
    const size_t run_end = end;
    end = best[end].start;
    if (id != unknown_id_) {
      ids.push_back(id);
      continue;
    }
    while (end > 0 && best[end].id == unknown_id_) {
      end = best[end].start;
    }
    // The run as a whole may be a piece, though a path through it scored lower.
    ids.push_back(vocabulary_.find(word.substr(end, run_end - end)).value_or(unknown_id_));
  }
  std::reverse(ids.begin() + first, ids.end());
}

}  // namespace flowshard::models
