// Changing tensors that may lie in host memory with work on the GPU: slice by slice through a few buffers,
// the copies beside the work. One thread at a time.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <functional>
#include <vector>

#include "fsdp/side_stream.h"

namespace flowshard::fsdp {

/// Values that go through a buffer at once, of every tensor: whole blocks of 8-bit codes.
inline constexpr int64_t kStagingSlice = int64_t{1} << 24;

class StagedUpdate {
 public:
  explicit StagedUpdate(at::Device device) : device_(device), upload_(device), download_(device) {}

  /// Dense one-dimensional tensors; undefined ones are passed on as they are.
  using Slice = std::vector<at::Tensor>;

  /// Calls update(i, tensors) for every slice in order, on the current stream, with the tensors of slice i on
  /// the device: themselves, or a copy, which is copied back afterwards. Returns when the tensors in host
  /// memory hold their new values.
  void run(const std::vector<Slice>& slices, const std::function<void(size_t, const Slice&)>& update);

 private:
  // Three, so that one is filled and one emptied while the third is in use.
  struct Buffer {
    at::Tensor memory;  // bytes, on the device
    StreamPoint ready, free;
  };
  bool is_staged(const at::Tensor& tensor) const { return tensor.defined() && tensor.device() != device_; }
  Slice begin(const Slice& slice, Buffer& buffer);
  void end(const Slice& slice, const Slice& on_device, Buffer& buffer);

  at::Device device_;
  SideStream upload_, download_;
  std::array<Buffer, 3> buffers_;
};

}  // namespace flowshard::fsdp
