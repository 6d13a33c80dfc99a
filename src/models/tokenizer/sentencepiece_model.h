// What T5 needs of a sentencepiece model, from spiece.model (a protocol buffer) or from tokenizer.json.
// Format: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "models/tokenizer/added_tokens.h"
#include "models/tokenizer/unigram.h"

namespace flowshard::models {

struct SentencepieceModel {
  std::vector<ScoredPiece> pieces;
  std::vector<AddedToken> control;  // pieces that text never becomes by itself; none in tokenizer.json
  std::string charsmap;
};

/// Throw ConfigError naming the missing or malformed file.
SentencepieceModel read_spiece_model(const std::filesystem::path& file);
SentencepieceModel read_unigram_json(const std::filesystem::path& file);

}  // namespace flowshard::models
