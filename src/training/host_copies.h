// Copies of a rank's shards in host memory, which a save writes while training changes the shards. One thread
// at a time.
#pragma once

#include <functional>
#include <future>
#include <vector>

#include "checkpoint/checkpoint_save.h"
#include "fsdp/side_stream.h"

namespace flowshard::training {

class HostCopies {
 public:
  explicit HostCopies(at::Device device) : device_(device), stream_(device) {}

  /// One group after the other; none of their tensors are kept.
  using Groups = std::function<checkpoint::GroupShards(size_t)>;

  /// Takes the memory of copies of group(0), ..., group(num_groups - 1), pinned for a GPU, unless that has
  /// been done.
  void reserve(size_t num_groups, const Groups& group);

  /// Copies of them as they are now (after the work that is queued on the current stream), in the reserved
  /// memory; the sizes and dtypes are those of reserve(). On a GPU a thread copies while training goes on:
  /// shards may change, and the host may read, when arrived() has returned. With `made_for_call` the groups'
  /// tensors are freed at once, so they are copied before this returns.
  std::vector<checkpoint::GroupShards> copy(size_t num_groups, const Groups& group, bool made_for_call);

  /// Waits until the copies of the last call are there; the one returned may be called from any thread.
  std::function<void()> arrived() const;

 private:
  struct Copy {
    at::Tensor from, to;
  };
  void copy_in_slices(const std::vector<Copy>& copies, const fsdp::StreamPoint& begin);

  at::Device device_;
  fsdp::SideStream stream_;
  std::vector<at::Tensor> buffers_;
  std::shared_future<void> copied_;
};

}  // namespace flowshard::training
