// The buffers that gathered parameters and gradients rotate through: few, all of the size of the largest
// block, so that memory is flat and known in advance. One thread at a time. On a GPU a buffer may be given
// back while kernels on the current stream still use it: whoever takes it next works on that stream or waits
// for it.
#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace flowshard::fsdp {

class FlatBufferPool {
 public:
  /// Every buffer will hold `capacity` elements. Allocates nothing yet.
  FlatBufferPool(int64_t capacity, at::TensorOptions options) : capacity_(capacity), options_(options) {}

  /// The first `numel` elements of a free buffer, or of a new one; the contents are undefined.
  at::Tensor take(int64_t numel);
  void give_back(const at::Tensor& taken);

  int64_t num_allocated() const { return num_allocated_; }

 private:
  int64_t capacity_;
  at::TensorOptions options_;
  int64_t num_allocated_ = 0;
  std::vector<at::Tensor> free_;
};

}  // namespace flowshard::fsdp
