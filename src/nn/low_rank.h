// Low-rank terms beside a linear's weight: what a LoRA adds, never merged, so that taking the terms away
// gives back the same bits as before.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>

namespace flowshard::nn {

/// On rows [row, row + R) of y = W x + b: y += scale * up (down x). With `row_scale` (DoRA) instead:
/// y = row_scale * (y - b + scale * up (down x)) + b. Frozen: not differentiated.
struct LowRankTerm {
  std::string adapter;  // whose term it is
  at::Tensor down;      // [r, I], in dtype and device of the weight
  at::Tensor up;        // [R, r]
  double scale = 1;
  int64_t row = 0;
  at::Tensor row_scale;  // [R], or undefined
};

}  // namespace flowshard::nn
