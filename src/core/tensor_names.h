// How the parameters of a model are named in a file. Plain data, so that models can publish their names and
// the weight loader can use them without either knowing the other.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace flowshard {

/// Rows [key_row, key_row + rows) of the tensor stored under `key` are rows [row, row + rows) of `parameter`
/// (dimension 0). rows < 0: all of the stored tensor. One parameter may have several parts (fused qkv from q,
/// k and v), and so may one key (halves that are stored the other way round); together they cover each row of
/// both exactly once.
struct TensorPart {
  std::string parameter;
  std::string key;
  int64_t row = 0;
  int64_t rows = -1;
  int64_t key_row = 0;
};

using TensorNames = std::vector<TensorPart>;

/// What a weights file says of itself: the shape of each tensor by key, and its free text. Enough to infer
/// the configuration of a model whose format has no configuration file.
struct TensorListing {
  std::string source;  // for messages
  std::map<std::string, std::vector<int64_t>> shapes;
  std::map<std::string, std::string> metadata;

  bool has(const std::string& key) const { return shapes.contains(key); }
};

}  // namespace flowshard
