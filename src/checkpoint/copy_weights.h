// Stored weights into the parameters of a model, with all threads of the machine.
#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace flowshard::checkpoint {

struct WeightCopy {
  at::Tensor stored;       // mapped; the sizes of `destination`, any dtype
  at::Tensor scale;        // undefined, or [1] or [rows] for a weight that is stored * scale
  at::Tensor destination;  // contiguous, on any device
};

/// Fills every destination, converting to its dtype, and returns when all are filled. On the way to a GPU the
/// weights pass through small pinned buffers, so that reading, converting and sending overlap and the host
/// never holds a second copy.
void copy_weights(const std::vector<WeightCopy>& copies);

}  // namespace flowshard::checkpoint
