// What a tokenizer makes of a text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace flowshard::models {

struct TokenIds {
  std::vector<int64_t> ids;  // padded to the length asked for
  std::string truncated;     // the tokens that did not fit, as text; empty if all did
};

}  // namespace flowshard::models
