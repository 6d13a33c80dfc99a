// A second stream of a GPU, for copies and collectives beside the computation. On a CPU there are no streams:
// what is called happens at once, in order. One thread at a time.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <functional>
#include <optional>

namespace flowshard::fsdp {

/// A point in the work of a stream; empty on a CPU.
using StreamPoint = std::optional<c10::Event>;

class SideStream {
 public:
  explicit SideStream(at::Device device);

  /// Queues what `work` calls behind all that the current stream has been given so far, and returns the point
  /// where it is done.
  StreamPoint run(const std::function<void()>& work) { return run_behind(here(), work); }

  /// The same behind `point` alone; may be called from another thread than here().
  StreamPoint run_behind(const StreamPoint& point, const std::function<void()>& work);

  /// What the current stream has been given so far.
  StreamPoint here() const;

  /// What the current stream is given from now on begins after `point`.
  static void wait(const StreamPoint& point);
  static void wait_on_host(const StreamPoint& point) {
    if (point) point->synchronize();
  }

 private:
  std::optional<c10::Stream> stream_;  // none on a CPU
};

}  // namespace flowshard::fsdp
