// The predicted memory of a GPU beside what was used.
#pragma once

#include <ATen/ATen.h>

#include <string>

#include "training/memory_estimate.h"

namespace flowshard::training {

/// "memory of cuda:0: 78.10 GiB of tensors predicted, at most 79.22 GiB in use so far (81.00 GiB reserved)".
std::string memory_beside_estimate(const MemoryEstimate& estimate, at::Device device);

}  // namespace flowshard::training
