#include "models/tokenizer/byte_pair_encoding.h"

#include <fstream>
#include <optional>
#include <queue>
#include <system_error>
#include <tuple>

#include "core/error.h"
#include "core/strict_json.h"
#include "models/tokenizer/tokenizer_files.h"
#include "models/tokenizer/unicode.h"

namespace flowshard::models {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr std::string_view kWordEnd = "</w>";

/// Bytes that print stand for themselves; the others, in order, for the characters from U+0100 on.
std::array<char32_t, 256> byte_characters() {
  std::array<char32_t, 256> characters{};
  char32_t next_free = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    characters[byte] = prints ? byte : next_free++;
  }
  return characters;
}

/// A character below U+0800 in UTF-8.
std::string to_utf8(char32_t c) {
  if (c < 0x80) {
    return {static_cast<char>(c)};
  }
  return {static_cast<char>(0xC0 | (c >> 6)), static_cast<char>(0x80 | (c & 0x3F))};
}

uint64_t pair_key(int64_t left, int64_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint64_t>(right);
}

Vocabulary to_vocabulary(const json& pieces, const fs::path& file) {
  Vocabulary vocabulary;
  for (const auto& [piece, id] : pieces.items()) {
    vocabulary.set(piece, to_id(id, file, "the id of " + in_quotes(piece)));
  }
  return vocabulary;
}

std::optional<std::pair<std::string, std::string>> split_merge(const std::string& line) {
  const auto space = line.find(' ');
  if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos) {
    return {};
  }
  return std::pair(line.substr(0, space), line.substr(space + 1));
}

BytePairModel read_whole_file(const fs::path& file) {
  const auto whole = read_json(file);
  return read_shape(file, [&] {
    const auto& model = whole.at("model");
    BytePairModel tables{.vocabulary = to_vocabulary(model.at("vocab"), file), .merges = {}};
    for (const auto& merge : model.at("merges")) {
      const auto pair = merge.is_string() ? split_merge(merge.get<std::string>())
                                          : std::optional(merge.get<std::pair<std::string, std::string>>());
      if (!pair) {
        throw ConfigError("{}: the merge {} is not two pieces", file.string(),
                          in_quotes(merge.get<std::string>()));
      }
      tables.merges.push_back(*pair);
    }
    return tables;
  });
}

std::vector<std::pair<std::string, std::string>> read_merges(const fs::path& file) {
  std::ifstream stream;
  if (fs::is_regular_file(file)) stream.open(file, std::ios::binary);
  if (!stream.is_open()) {
    throw ConfigError("cannot read {}: check the path of the tokenizer folder", file.string());
  }
  std::vector<std::pair<std::string, std::string>> merges;
  int64_t number = 0;
  for (std::string line; std::getline(stream, line);) {
    ++number;
    if (line.ends_with('\r')) {
      line.pop_back();
    }
    if (line.starts_with("#version")) {
      continue;
    }
    const auto pair = split_merge(line);
    if (!pair) {
      throw ConfigError("{}: line {} is not two pieces with a space between them", file.string(), number);
    }
    merges.push_back(*pair);
  }
  return merges;
}

}  // namespace

BytePairModel read_byte_pair_model(const fs::path& folder) {
  std::error_code ignored;
  if (const auto whole = folder / "tokenizer.json"; fs::exists(whole, ignored)) {
    return read_whole_file(whole);
  }
  const auto file = folder / "vocab.json";
  const auto pieces = read_json(file);
  return {.vocabulary = read_shape(file, [&] { return to_vocabulary(pieces, file); }),
          .merges = read_merges(folder / "merges.txt")};
}

BytePairEncoding::BytePairEncoding(const fs::path& folder, const BytePairModel& model,
                                   const std::string& unknown) {
  const auto id_of = [&](const std::string& piece) {
    const auto id = model.vocabulary.find(piece);
    if (!id) {
      throw ConfigError("{}: the vocabulary lacks {}", folder.string(), in_quotes(piece));
    }
    return *id;
  };
  const int64_t unknown_id = id_of(unknown);
  const auto characters = byte_characters();
  for (size_t byte = 0; byte < 256; ++byte) {
    const auto character = to_utf8(characters[byte]);
    inner_ids_[byte] = model.vocabulary.find(character).value_or(unknown_id);
    last_ids_[byte] = model.vocabulary.find(character + std::string(kWordEnd)).value_or(unknown_id);
  }
  int64_t rank = 0;
  for (const auto& [left, right] : model.merges) {
    const auto key = pair_key(id_of(left), id_of(right));
    merges_[key] = {rank++, id_of(left + right)};
  }
}

const BytePairEncoding::Merge* BytePairEncoding::find_merge(int64_t left, int64_t right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void BytePairEncoding::encode(std::string_view word, std::vector<int64_t>& ids) const {
  struct Symbol {
    int64_t id;
    size_t previous, next;  // positions of the neighbours; the size of the word if there is none
    bool merged_away;
  };
  const size_t none = word.size();
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (size_t i = 0; i < word.size(); ++i) {
    const auto byte = static_cast<unsigned char>(word[i]);
    const bool last = i + 1 == word.size();
    symbols.push_back({last ? last_ids_[byte] : inner_ids_[byte], i == 0 ? none : i - 1, i + 1, false});
  }

  // A queue keeps long words fast. Of equal ranks the leftmost pair is merged first.
  using Candidate =
      std::tuple<int64_t, size_t, int64_t>;  // rank, position of the left symbol, id of the whole
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto offer = [&](size_t left) {
    if (left != none && symbols[left].next != none) {
      if (const auto* merge = find_merge(symbols[left].id, symbols[symbols[left].next].id)) {
        queue.emplace(merge->rank, left, merge->id);
      }
    }
  };
  for (size_t i = 0; i < symbols.size(); ++i) {
    offer(i);
  }
  while (!queue.empty()) {
    const auto [rank, position, id] = queue.top();
    queue.pop();
    auto& left = symbols[position];
    if (left.merged_away || left.next == none) {
      continue;
    }
    auto& right = symbols[left.next];
    const auto* merge = find_merge(left.id, right.id);
    if (!merge || merge->id != id) {
      continue;  // an earlier merge took one of the two
    }
    left.id = id;
    left.next = right.next;
    right.merged_away = true;
    if (left.next != none) {
      symbols[left.next].previous = position;
    }
    offer(left.previous);
    offer(position);
  }
  for (size_t i = 0; i != none; i = symbols[i].next) {
    ids.push_back(symbols[i].id);
  }
}

std::string byte_pair_text(const std::vector<std::string_view>& pieces) {
  static const auto bytes_of = [] {
    std::unordered_map<char32_t, char> bytes;
    const auto characters = byte_characters();
    for (size_t byte = 0; byte < 256; ++byte) {
      bytes[characters[byte]] = static_cast<char>(byte);
    }
    return bytes;
  }();
  std::string bytes;
  for (const auto piece : pieces) {
    std::string decoded;
    bool all_bytes = true;
    for (size_t position = 0; position < piece.size();) {
      const auto found = bytes_of.find(unicode::next(piece, position));
      all_bytes = all_bytes && found != bytes_of.end();
      decoded += all_bytes ? found->second : '?';
    }
    bytes += all_bytes ? decoded : piece;
  }
  return unicode::replace_all(unicode::replace_invalid(bytes), kWordEnd, " ");
}

}  // namespace flowshard::models
