#include "fsdp/flat_buffer_pool.h"

#include "core/error.h"

namespace flowshard::fsdp {

at::Tensor FlatBufferPool::take(int64_t numel) {
  check(numel <= capacity_, "a flat buffer holds the largest group");
  if (free_.empty()) {
    free_.push_back(at::empty({capacity_}, options_));
    ++num_allocated_;
  }
  const at::Tensor buffer = free_.back().narrow(0, 0, numel);
  free_.pop_back();
  return buffer;
}

void FlatBufferPool::give_back(const at::Tensor& taken) {
  free_.push_back(taken.as_strided({capacity_}, {1}, 0));
}

}  // namespace flowshard::fsdp
