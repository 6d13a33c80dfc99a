// For tests: how much memory on the CPU a computation leaves allocated, such as what a forward pass keeps for
// backward.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>

namespace flowshard::nn {

/// Counts what this thread allocates, less what it frees of that, while it exists.
class KeptBytes {
 public:
  int64_t bytes() const { return count_->bytes; }

 private:
  struct Count : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override { bytes += size; }
    bool memoryProfilingEnabled() const override { return true; }
    int64_t bytes = 0;
  };
  std::shared_ptr<Count> count_ = std::make_shared<Count>();
  c10::DebugInfoGuard guard_{c10::DebugInfoKind::PROFILER_STATE, count_};
};

}  // namespace flowshard::nn
