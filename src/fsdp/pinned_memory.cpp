#include <ATen/Parallel.h>
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include "core/error.h"
#include "fsdp/host_memory.h"

namespace flowshard::fsdp {
namespace {

constexpr int64_t kPage = int64_t{2} << 20;

// The kernel hands out and clears pages as they are touched: by one thread, which is what pinning does, 100
// GB would take a minute.
void touch_pages(char* memory, int64_t bytes) {
  at::parallel_for(0, (bytes + kPage - 1) / kPage, 64, [&](int64_t first, int64_t last) {
    for (int64_t page = first; page < last; ++page) memory[page * kPage] = 0;
  });
}

}  // namespace

at::Tensor pinned_zeros(int64_t numel, at::ScalarType dtype) {
  const int64_t wanted = std::max<int64_t>(1, numel * static_cast<int64_t>(c10::elementSize(dtype)));
  const int64_t bytes = (wanted + kPage - 1) / kPage * kPage;
  void* memory =
      ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    throw ConfigError("the host has no {} bytes to pin: lower memory.host_gib, or set checkpoint.async=false",
                      bytes);
  ::madvise(memory, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  touch_pages(static_cast<char*>(memory), bytes);
  const bool pinned =
      cudaHostRegister(memory, static_cast<size_t>(bytes), cudaHostRegisterDefault) == cudaSuccess;
  const auto release = [bytes, pinned](void* old) {
    if (pinned) cudaHostUnregister(old);
    ::munmap(old, static_cast<size_t>(bytes));
  };
  if (!pinned) {
    release(memory);
    throw ConfigError(
        "the host does not let {} bytes be pinned: raise ulimit -l, lower memory.host_gib, or set "
        "checkpoint.async=false",
        bytes);
  }
  return at::from_blob(memory, {numel}, release, dtype);
}

}  // namespace flowshard::fsdp
