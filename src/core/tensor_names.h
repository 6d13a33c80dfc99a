// How the parameters of a model are named in a file. Plain data, so that models can publish their names and
// the weight loader can use them without either knowing the other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace flowshard {

/// The tensor stored under `key` is rows [row, row + rows) of `parameter` (dimension 0). rows < 0: all of it.
/// One parameter may have several parts (fused qkv from q, k and v); together they cover each row exactly
/// once.
struct TensorPart {
  std::string parameter;
  std::string key;
  int64_t row = 0;
  int64_t rows = -1;
};

using TensorNames = std::vector<TensorPart>;

}  // namespace flowshard
