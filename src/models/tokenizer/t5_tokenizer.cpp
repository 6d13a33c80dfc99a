#include "models/tokenizer/t5_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "core/error.h"
#include "models/tokenizer/added_tokens.h"
#include "models/tokenizer/charsmap.h"
#include "models/tokenizer/sentencepiece_model.h"
#include "models/tokenizer/tokenizer_files.h"
#include "models/tokenizer/unicode.h"
#include "models/tokenizer/unigram.h"

namespace flowshard::models {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kUnknownId = 2;
constexpr int64_t kNumExtraIds = 100;
constexpr std::string_view kSpaceMark = "\u2581";

std::string extra_id(int64_t i) { return fmt::format("<extra_id_{}>", i); }

/// The model with the pieces of the extra ids, which spiece.model lacks and tokenizer.json has.
SentencepieceModel read_model(const fs::path& folder, int64_t num_extra_ids) {
  std::error_code ignored;
  const bool whole = fs::exists(folder / "tokenizer.json", ignored);
  const auto file = folder / (whole ? "tokenizer.json" : "spiece.model");
  auto model = whole ? read_unigram_json(file) : read_spiece_model(file);
  if (model.pieces.size() <= static_cast<size_t>(kUnknownId)) {
    throw ConfigError("{} has {} pieces: too few for a T5 model", file.string(), model.pieces.size());
  }
  for (int64_t i = num_extra_ids - 1; !whole && i >= 0; --i) {
    model.pieces.push_back({.text = extra_id(i), .score = 0});
  }
  return model;
}

int64_t read_num_extra_ids(const fs::path& folder) {
  const auto file = folder / "tokenizer_config.json";
  std::error_code ignored;
  if (!fs::exists(file, ignored)) {
    return kNumExtraIds;
  }
  const auto config = read_json(file);
  return read_shape(file, [&] {
    if (!config.contains("extra_ids")) {
      return kNumExtraIds;
    }
    const auto number = to_id(config["extra_ids"], file, "extra_ids");
    if (number > 100'000) {
      throw ConfigError("{}: extra_ids is {}, not a number of tokens", file.string(), number);
    }
    return number;
  });
}

struct Files {
  SentencepieceModel model;
  SpecialTokens special;
};

Files read_files(const fs::path& folder) {
  const auto num_extra_ids = read_num_extra_ids(folder);
  auto model = read_model(folder, num_extra_ids);
  SpecialTokens defaults = {.named = {{"eos_token", "</s>"}, {"unk_token", "<unk>"}, {"pad_token", "<pad>"}},
                            .added = model.control};
  for (int64_t i = 0; i < num_extra_ids; ++i) {
    defaults.added.push_back({.content = extra_id(i)});
  }
  auto special = read_special_tokens(folder, defaults);
  return {.model = std::move(model), .special = std::move(special)};
}

/// Calls `use` with each word of normalized text: cut at white space, which is dropped, and before each space
/// mark; the first part of every word gets a space mark if it has none.
template <typename Use>
void for_each_word(std::string_view text, Use use) {
  const auto use_parts = [&use](std::string word) {
    if (!word.starts_with(kSpaceMark)) {
      word.insert(0, kSpaceMark);
    }
    const std::string_view parts = word;
    for (size_t start = 0; start < parts.size();) {
      const size_t end = std::min(parts.find(kSpaceMark, start + kSpaceMark.size()), parts.size());
      use(parts.substr(start, end - start));
      start = end;
    }
  };
  size_t start = 0;
  for (size_t position = 0; position < text.size();) {
    const size_t here = position;
    if (unicode::is_space(unicode::next(text, position))) {
      if (start < here) {
        use_parts(std::string(text.substr(start, here - start)));
      }
      start = position;
    }
  }
  if (start < text.size()) {
    use_parts(std::string(text.substr(start)));
  }
}

}  // namespace

struct T5Tokenizer::Impl {
  explicit Impl(const fs::path& folder) : Impl(folder, read_files(folder)) {}

  Impl(const fs::path& folder, Files files)
      : charsmap(files.model.charsmap, folder.string()),
        unigram(std::move(files.model.pieces), kUnknownId),
        added(files.special.added, unigram.vocabulary(),
              [this](std::string_view text) { return charsmap.normalize(text); }),
        end_id(named_id(folder, files.special, added, "eos_token")),
        pad_id(named_id(folder, files.special, added, "pad_token")) {}

  std::vector<int64_t> encode(std::string_view text) const {
    std::vector<int64_t> ids;
    for (const auto& segment : added.split(text)) {
      if (segment.id) {
        ids.push_back(*segment.id);
      } else {
        for_each_word(segment.text, [&](std::string_view word) { unigram.encode(word, ids); });
      }
    }
    return ids;
  }

  /// Pieces set side by side, space marks as spaces, without the one that opens the text.
  std::string text_of(const std::vector<int64_t>& ids, size_t from) const {
    std::string text;
    for (size_t i = from; i < ids.size(); ++i) {
      const auto token = added.vocabulary().piece(ids[i]);
      const auto piece = token.empty() ? unigram.vocabulary().piece(ids[i]) : token;
      text += unicode::replace_all(piece, kSpaceMark, i == from ? "" : " ");
    }
    return text;
  }

  Charsmap charsmap;
  Unigram unigram;
  AddedTokens added;
  int64_t end_id, pad_id;
};

T5Tokenizer::T5Tokenizer(const fs::path& folder) : impl_(std::make_unique<Impl>(folder)) {}
T5Tokenizer::~T5Tokenizer() = default;

TokenIds T5Tokenizer::encode(const std::string& text, int64_t length) const {
  if (length < 1) {
    throw ConfigError("a T5 prompt cannot be {} tokens long: ask for at least 1", length);
  }
  unicode::check_utf8(text);
  TokenIds result{.ids = impl_->encode(text), .truncated = {}};
  const auto room = static_cast<size_t>(length - 1);
  if (result.ids.size() > room) {
    result.truncated = impl_->text_of(result.ids, room);
    result.ids.resize(room);
  }
  result.ids.push_back(impl_->end_id);
  result.ids.resize(static_cast<size_t>(length), impl_->pad_id);
  return result;
}

}  // namespace flowshard::models
