#include "models/tokenizer/added_tokens.h"

#include <algorithm>
#include <map>
#include <utility>

#include "models/tokenizer/unicode.h"

namespace flowshard::models {
namespace {

/// The start of the code point that ends at `end`.
size_t previous_start(std::string_view text, size_t end) {
  do {
    --end;
  } while ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  return end;
}

char32_t code_point_at(std::string_view text, size_t position) { return unicode::next(text, position); }

bool touches_word(std::string_view text, size_t start, size_t end) {
  return (start > 0 && unicode::is_word(code_point_at(text, previous_start(text, start)))) ||
         (end < text.size() && unicode::is_word(code_point_at(text, end)));
}

size_t strip_left(std::string_view text, size_t start) {
  while (start > 0 && unicode::is_space(code_point_at(text, previous_start(text, start)))) {
    start = previous_start(text, start);
  }
  return start;
}

size_t strip_right(std::string_view text, size_t end) {
  size_t position = end;
  while (position < text.size() && unicode::is_space(unicode::next(text, position))) {
    end = position;
  }
  return end;
}

}  // namespace

AddedTokens::AddedTokens(const std::vector<AddedToken>& tokens, const Vocabulary& model, Normalize normalize)
    : normalize_(std::move(normalize)) {
  std::map<std::string, AddedToken> last;
  auto next_id = static_cast<int64_t>(model.size());
  for (const auto& token : tokens) {
    if (!vocabulary_.find(token.content)) {
      const auto known = model.find(token.content);
      vocabulary_.set(token.content, known ? *known : next_id++);
    }
    last[token.content] = token;
  }
  for (const auto& [content, token] : last) {
    const auto text = token.normalized ? normalize_(content) : content;
    if (!text.empty()) {
      (token.normalized ? normalized_ : raw_).push_back({text, token, *vocabulary_.find(content)});
    }
  }
}

const AddedTokens::Pattern* AddedTokens::longest_match(const std::vector<Pattern>& patterns,
                                                       std::string_view text) {
  const Pattern* longest = nullptr;
  for (const auto& pattern : patterns) {
    if (text.starts_with(pattern.text) && (!longest || pattern.text.size() > longest->text.size())) {
      longest = &pattern;
    }
  }
  return longest;
}

std::vector<AddedTokens::Segment> AddedTokens::split_at(const std::vector<Pattern>& patterns,
                                                        std::string_view text) {
  std::vector<Segment> segments;
  size_t done = 0;
  size_t position = 0;
  while (position < text.size()) {
    const auto* match = longest_match(patterns, text.substr(position));
    if (!match) {
      ++position;
      continue;
    }
    size_t start = position;
    size_t end = position + match->text.size();
    position = end;
    if (match->token.single_word && touches_word(text, start, end)) {
      continue;
    }
    if (match->token.lstrip) {
      start = std::max(strip_left(text, start), done);
    }
    if (match->token.rstrip) {
      end = strip_right(text, end);
    }
    if (done < start) {
      segments.push_back({std::string(text.substr(done, start - done)), {}});
    }
    segments.push_back({std::string(text.substr(start, end - start)), match->id});
    done = end;
  }
  if (done < text.size()) {
    segments.push_back({std::string(text.substr(done)), {}});
  }
  return segments;
}

std::vector<AddedTokens::Segment> AddedTokens::split(std::string_view text) const {
  std::vector<Segment> segments;
  for (auto& outer : split_at(raw_, text)) {
    if (outer.id) {
      segments.push_back(std::move(outer));
      continue;
    }
    for (auto& inner : split_at(normalized_, normalize_(outer.text))) {
      segments.push_back(std::move(inner));
    }
  }
  return segments;
}

}  // namespace flowshard::models
