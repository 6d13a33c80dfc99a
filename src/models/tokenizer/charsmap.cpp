#include "models/tokenizer/charsmap.h"

#include "core/error.h"
#include "models/tokenizer/unicode.h"

namespace flowshard::models {
namespace {

// Longer grapheme clusters are never looked up as a whole.
constexpr size_t kMaxClusterBytes = 5;

uint32_t read_u32(std::string_view bytes, size_t position) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) {
    value |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[position + i])) << (8 * i);
  }
  return value;
}

// One unit of the double array.
bool has_leaf(uint32_t unit) { return ((unit >> 8) & 1) != 0; }
uint32_t value_of(uint32_t unit) { return unit & 0x7FFFFFFFU; }
uint32_t label_of(uint32_t unit) { return unit & 0x800000FFU; }
uint32_t offset_of(uint32_t unit) { return (unit >> 10) << ((unit & 0x200U) >> 6); }

}  // namespace

Charsmap::Charsmap(std::string_view bytes, const std::string& source) {
  if (bytes.empty()) {
    return;
  }
  const size_t trie_bytes = bytes.size() < 4 ? 0 : read_u32(bytes, 0) / 4 * 4;
  if (trie_bytes == 0 || trie_bytes > bytes.size() - 4) {
    throw ConfigError("{}: the character map is cut short or damaged", source);
  }
  for (size_t i = 0; i < trie_bytes; i += 4) {
    trie_.push_back(read_u32(bytes, 4 + i));
  }
  replacements_ = bytes.substr(4 + trie_bytes);
  if (unicode::replace_invalid(replacements_) != replacements_) {
    throw ConfigError("{}: the character map holds text that is not UTF-8", source);
  }
}

/// What the shortest entry that `chunk` starts with is replaced by. The reference then drops the rest of the
/// chunk, be it a mark: "fi" for the ligature with an acute.
std::optional<std::string_view> Charsmap::find(std::string_view chunk) const {
  size_t node = offset_of(trie_.front());
  for (const char c : chunk) {
    const auto byte = static_cast<unsigned char>(c);
    node ^= byte;
    if (byte == 0 || node >= trie_.size() || label_of(trie_[node]) != byte) {
      return {};
    }
    const uint32_t unit = trie_[node];
    node ^= offset_of(unit);
    if (has_leaf(unit)) {
      const size_t start = node < trie_.size() ? value_of(trie_[node]) : replacements_.size();
      const auto rest = std::string_view(replacements_).substr(std::min(start, replacements_.size()));
      // A damaged map may point into the middle of a character.
      if (!rest.empty() && (static_cast<unsigned char>(rest.front()) & 0xC0) == 0x80) {
        return {};
      }
      return rest.substr(0, rest.find('\0'));
    }
  }
  return {};
}

std::string Charsmap::normalize(std::string_view text) const {
  if (trie_.empty()) {
    return std::string(text);
  }
  std::string normalized;
  normalized.reserve(text.size());
  size_t start = 0;
  for (const size_t end : unicode::grapheme_ends(text)) {
    const auto cluster = text.substr(start, end - start);
    start = end;
    const auto whole = cluster.size() <= kMaxClusterBytes ? find(cluster) : std::nullopt;
    if (whole) {
      normalized += *whole;
      continue;
    }
    for (size_t position = 0; position < cluster.size();) {
      const size_t from = position;
      unicode::next(cluster, position);
      const auto character = cluster.substr(from, position - from);
      normalized += find(character).value_or(character);
    }
  }
  return normalized;
}

}  // namespace flowshard::models
