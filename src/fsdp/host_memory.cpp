#include "fsdp/host_memory.h"

#include "core/error.h"
#include "core/free_host_memory.h"

namespace flowshard::fsdp {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

}  // namespace

at::Tensor HostMemory::zeros(int64_t numel, at::ScalarType dtype) {
  const auto bytes = numel * static_cast<int64_t>(c10::elementSize(dtype));
  if (bytes > bytes_left_) return at::zeros({numel}, at::TensorOptions(dtype).device(device_));
  const int64_t available = free_host_memory();
  if (bytes > available) {
    throw ConfigError(
        "host memory: {:.1f} GiB are free, {:.1f} more are wanted for what memory.offload_parameters and "
        "memory.offload_optimizer keep there ({:.1f} so far); set memory.host_gib to what the ranks of a "
        "host may take",
        static_cast<double>(available) / kGiB, static_cast<double>(bytes) / kGiB,
        static_cast<double>(used_bytes_) / kGiB);
  }
  bytes_left_ -= bytes;
  used_bytes_ += bytes;
  return device_.is_cpu() ? at::zeros({numel}, dtype) : pinned_zeros(numel, dtype);
}

}  // namespace flowshard::fsdp
