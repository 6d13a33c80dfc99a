#include "models/tokenizer/clip_tokenizer.h"

#include <optional>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "models/tokenizer/added_tokens.h"
#include "models/tokenizer/byte_pair_encoding.h"
#include "models/tokenizer/tokenizer_files.h"
#include "models/tokenizer/unicode.h"

namespace flowshard::models {
namespace {

const SpecialTokens kDefaults = {.named = {{"bos_token", "<|startoftext|>"},
                                           {"eos_token", "<|endoftext|>"},
                                           {"unk_token", "<|endoftext|>"},
                                           {"pad_token", "<|endoftext|>"}},
                                 .added = {}};

std::string collapse_spaces(std::string_view text) {
  std::string collapsed;
  bool after_space = false;
  for (size_t position = 0; position < text.size();) {
    const size_t start = position;
    const bool space = unicode::is_space(unicode::next(text, position));
    if (!space) {
      collapsed += text.substr(start, position - start);
    } else if (!after_space) {
      collapsed += ' ';
    }
    after_space = space;
  }
  return collapsed;
}

std::string normalize(std::string_view text) {
  return unicode::lower_case(collapse_spaces(unicode::compose(text)));
}

enum class Kind { kSpace, kLetter, kNumber, kOther };

Kind kind_of(char32_t c) {
  if (c < 0x80) {
    const auto lower = c | 0x20;
    return lower >= 'a' && lower <= 'z' ? Kind::kLetter
           : c >= '0' && c <= '9'       ? Kind::kNumber
           : unicode::is_space(c)       ? Kind::kSpace
                                        : Kind::kOther;
  }
  return unicode::is_letter(c)   ? Kind::kLetter
         : unicode::is_number(c) ? Kind::kNumber
         : unicode::is_space(c)  ? Kind::kSpace
                                 : Kind::kOther;
}

/// Cuts normalized text into words by the first of these that matches, leaving out what none matches:
///   <|startoftext|>  <|endoftext|>  's 't 're 've 'm 'll 'd  [\p{L}]+  [\p{N}]  [^\s\p{L}\p{N}]+
/// The reference then cuts words once more, by GPT-2's expression. That changes only the two markers.
class Words {
 public:
  explicit Words(std::string_view text) : text_(text) {}

  /// The next word; empty after the last.
  std::string_view next() {
    while (position_ < text_.size()) {
      const size_t length = marker_length_ > 0 ? marker_part() : match();
      const auto word = text_.substr(position_, length);
      position_ += length;
      size_t probe = 0;
      if (kind_of(unicode::next(word, probe)) != Kind::kSpace) {
        return word;
      }
    }
    return {};
  }

 private:
  size_t match() {
    const auto rest = text_.substr(position_);
    for (const std::string_view marker : {"<|startoftext|>", "<|endoftext|>"}) {
      if (rest.starts_with(marker)) {
        marker_length_ = marker.size();
        return marker_part();
      }
    }
    for (const std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
      if (rest.starts_with(ending)) {
        return ending.size();
      }
    }
    size_t end = 0;
    const auto kind = kind_of(unicode::next(rest, end));
    if (kind == Kind::kNumber || kind == Kind::kSpace) {
      return end;
    }
    for (size_t following = end; following < rest.size(); end = following) {
      if (kind_of(unicode::next(rest, following)) != kind) {
        break;
      }
    }
    return end;
  }

  /// A marker falls into "<|", its name and "|>".
  size_t marker_part() {
    const bool name = text_[position_] != '<' && text_[position_] != '|';
    const size_t length = name ? marker_length_ - 2 : 2;
    marker_length_ -= length;
    return length;
  }

  std::string_view text_;
  size_t position_ = 0;
  size_t marker_length_ = 0;  // what is left of the marker at position_
};

std::string trim(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\n\r\f\v");
  const auto last = text.find_last_not_of(" \t\n\r\f\v");
  return first == std::string_view::npos ? std::string() : std::string(text.substr(first, last - first + 1));
}

}  // namespace

struct ClipTokenizer::Impl {
  explicit Impl(const std::filesystem::path& folder)
      : Impl(folder, read_byte_pair_model(folder), read_special_tokens(folder, kDefaults)) {}

  Impl(const std::filesystem::path& folder, BytePairModel model, const SpecialTokens& special)
      : added(special.added, model.vocabulary, normalize),
        encoding(folder, model, unknown_of(folder, special)),
        vocabulary(std::move(model.vocabulary)),
        start_id(named_id(folder, special, added, "bos_token")),
        end_id(named_id(folder, special, added, "eos_token")),
        pad_id(named_id(folder, special, added, "pad_token")) {}

  static std::string unknown_of(const std::filesystem::path& folder, const SpecialTokens& special) {
    const auto found = special.named.find("unk_token");
    if (found == special.named.end()) {
      throw ConfigError("{} has no unk_token", (folder / "tokenizer_config.json").string());
    }
    return found->second;
  }

  std::vector<int64_t> encode(std::string_view text) const {
    std::vector<int64_t> ids;
    for (const auto& segment : added.split(text)) {
      if (segment.id) {
        ids.push_back(*segment.id);
        continue;
      }
      Words words(segment.text);
      for (auto word = words.next(); !word.empty(); word = words.next()) {
        encoding.encode(word, ids);
      }
    }
    return ids;
  }

  std::string text_of(const std::vector<int64_t>& ids, size_t from) const {
    std::vector<std::string_view> pieces;
    for (size_t i = from; i < ids.size(); ++i) {
      const auto token = added.vocabulary().piece(ids[i]);
      pieces.push_back(token.empty() ? vocabulary.piece(ids[i]) : token);
    }
    return trim(byte_pair_text(pieces));
  }

  AddedTokens added;
  BytePairEncoding encoding;
  Vocabulary vocabulary;
  int64_t start_id, end_id, pad_id;
};

ClipTokenizer::ClipTokenizer(const std::filesystem::path& folder) : impl_(std::make_unique<Impl>(folder)) {}
ClipTokenizer::~ClipTokenizer() = default;

TokenIds ClipTokenizer::encode(const std::string& text, int64_t length) const {
  if (length < 2) {
    throw ConfigError("a CLIP prompt cannot be {} tokens long: ask for at least 2", length);
  }
  unicode::check_utf8(text);
  const auto ids = impl_->encode(text);
  const size_t kept = std::min(ids.size(), static_cast<size_t>(length - 2));
  TokenIds result;
  result.ids.push_back(impl_->start_id);
  result.ids.insert(result.ids.end(), ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(kept));
  result.ids.push_back(impl_->end_id);
  result.ids.resize(static_cast<size_t>(length), impl_->pad_id);
  if (kept < ids.size()) {
    result.truncated = impl_->text_of(ids, kept);
  }
  return result;
}

}  // namespace flowshard::models
