// Copies of a rank's shards in host memory, which a save writes while training changes the shards. One thread
// at a time.
#pragma once

#include <functional>
#include <vector>

#include "checkpoint/checkpoint_save.h"

namespace flowshard::training {

class HostCopies {
 public:
  explicit HostCopies(at::Device device) : device_(device) {}

  /// Copies of group(0), ..., group(num_groups - 1) as they are now (after the work that is queued on the
  /// current stream of the device), on the host. Asks for one group after the other and keeps none of their
  /// tensors, so that those made for the call are few at a time. Returns when all is copied. The memory,
  /// pinned for a GPU, is taken at the first call and used again by the next ones, which have
  /// the same sizes and dtypes.
  std::vector<checkpoint::GroupShards> copy(size_t num_groups,
                                            const std::function<checkpoint::GroupShards(size_t)>& group);

 private:
  at::Device device_;
  std::vector<at::Tensor> buffers_;
};

}  // namespace flowshard::training
