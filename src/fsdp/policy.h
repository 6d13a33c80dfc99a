// How a model is sharded and in which precision it computes. Names are PyTorch's.
#pragma once

#include <ATen/ATen.h>

namespace flowshard::fsdp {

enum class Strategy {
  kFullShard,  // each rank holds 1/world of parameters, gradients and optimizer state; blocks are gathered to
               // be used
  kNoShard,    // each rank holds everything; gradients are summed (DDP)
};

struct MixedPrecisionPolicy {
  at::ScalarType param_dtype = at::kFloat;   // of gathered parameters and activations
  at::ScalarType reduce_dtype = at::kFloat;  // of gradients, in the buffer and in the sum over ranks
};

}  // namespace flowshard::fsdp
