// The pieces of a tokenizer model and their ids.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace flowshard::models {

/// Lets a map with text keys be searched without making a std::string.
struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

template <typename Value>
using TextMap = std::unordered_map<std::string, Value, TextHash, std::equal_to<>>;

class Vocabulary {
 public:
  /// A piece given twice has its last id.
  void set(std::string piece, int64_t id) {
    pieces_[id] = piece;
    ids_[std::move(piece)] = id;
  }

  std::optional<int64_t> find(std::string_view piece) const {
    const auto found = ids_.find(piece);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }

  /// Empty if no piece has this id.
  std::string_view piece(int64_t id) const {
    const auto found = pieces_.find(id);
    return found == pieces_.end() ? std::string_view() : found->second;
  }

  size_t size() const { return ids_.size(); }

 private:
  TextMap<int64_t> ids_;
  std::unordered_map<int64_t, std::string> pieces_;
};

}  // namespace flowshard::models
