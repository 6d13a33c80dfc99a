// For tests and benchmarks: how far a tensor is from what it should be.
#pragma once

#include <ATen/ATen.h>

namespace flowshard::kernels {

/// || actual - expected || / || expected || in fp64; NaN where either has one.
inline double relative_error(const at::Tensor& actual, const at::Tensor& expected) {
  const at::Tensor wide = expected.detach().to(at::kDouble);
  return ((actual.detach().to(at::kDouble) - wide).norm() / wide.norm()).item<double>();
}

/// Fills the memory that the next allocations will get with NaN, so that an output element that no kernel
/// writes shows.
inline void poison_free_memory(at::Device device) {
  for (const int64_t count : {100, 100'000, 1'000'000, 40'000'000})
    at::full({count}, NAN, at::TensorOptions(device).dtype(at::kFloat));
}

}  // namespace flowshard::kernels
