// Host memory for what a GPU need not hold all the time: pinned, so that copies run beside the computation,
// and within a budget. One thread at a time.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace flowshard::fsdp {

class HostMemory {
 public:
  /// Hands out at most `budget_bytes` for tensors that `device` works with.
  HostMemory(at::Device device, int64_t budget_bytes) : device_(device), bytes_left_(budget_bytes) {}

  /// [numel] zeros: in host memory while the budget lasts, then on the device. Throws ConfigError where the
  /// host has less than the budget allows.
  at::Tensor zeros(int64_t numel, at::ScalarType dtype);

  int64_t used_bytes() const { return used_bytes_; }

 private:
  at::Device device_;
  int64_t bytes_left_, used_bytes_ = 0;
};

/// [numel] zeros in pinned memory of exactly that size; LibTorch's own pinned allocator takes the next power
/// of two. Without a GPU: ordinary memory.
at::Tensor pinned_zeros(int64_t numel, at::ScalarType dtype);

}  // namespace flowshard::fsdp
