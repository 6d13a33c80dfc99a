// Tokens that are matched as whole words of the text before the model sees it, such as <|endoftext|> or
// <extra_id_0>. Immutable after construction, so thread-safe.
// Reference: tokenizers, src/tokenizer/added_vocabulary.rs
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer/vocabulary.h"

namespace flowshard::models {

struct AddedToken {
  std::string content;
  bool single_word = false;  // matches only where no word character touches it
  bool lstrip = false;       // takes the white space before it with it
  bool rstrip = false;       // and the white space behind it
  bool normalized = false;   // is looked for in the normalized text, in its own normalized form
};

class AddedTokens {
 public:
  using Normalize = std::function<std::string(std::string_view)>;

  struct Segment {
    std::string text;           // normalized
    std::optional<int64_t> id;  // set if the segment is an added token
  };

  /// A token that the model's vocabulary lacks gets the next free id. The last of equal contents counts.
  AddedTokens(const std::vector<AddedToken>& tokens, const Vocabulary& model, Normalize normalize);

  /// Cuts `text` at the tokens and normalizes what lies between them.
  std::vector<Segment> split(std::string_view text) const;

  /// The tokens with the ids that they got.
  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  struct Pattern {
    std::string text;
    AddedToken token;
    int64_t id;
  };

  static const Pattern* longest_match(const std::vector<Pattern>& patterns, std::string_view text);
  static std::vector<Segment> split_at(const std::vector<Pattern>& patterns, std::string_view text);

  Vocabulary vocabulary_;
  std::vector<Pattern> raw_, normalized_;
  Normalize normalize_;
};

}  // namespace flowshard::models
