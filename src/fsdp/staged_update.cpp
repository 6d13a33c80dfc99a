#include "fsdp/staged_update.h"

namespace flowshard::fsdp {
namespace {

constexpr int64_t kAlignment = 256;  // bytes

int64_t aligned_bytes(const at::Tensor& tensor) {
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

void StagedUpdate::run(const std::vector<Slice>& slices,
                       const std::function<void(size_t, const Slice&)>& update) {
  const at::NoGradGuard no_grad;
  if (slices.empty()) return;
  const auto buffer_of = [&](size_t i) -> Buffer& { return buffers_[i % buffers_.size()]; };
  Slice next = begin(slices[0], buffer_of(0));
  for (size_t i = 0; i < slices.size(); ++i) {
    const Slice on_device = std::move(next);
    if (i + 1 < slices.size()) next = begin(slices[i + 1], buffer_of(i + 1));
    SideStream::wait(buffer_of(i).ready);
    update(i, on_device);
    end(slices[i], on_device, buffer_of(i));
  }
  for (Buffer& buffer : buffers_) {
    if (buffer.free) buffer.free->synchronize();
    buffer.free.reset();
  }
}

StagedUpdate::Slice StagedUpdate::begin(const Slice& slice, Buffer& buffer) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : slice) bytes += is_staged(tensor) ? aligned_bytes(tensor) : 0;
  if (bytes == 0) return slice;
  if (!buffer.memory.defined() || buffer.memory.numel() < bytes) {
    buffer.memory = at::empty({bytes}, at::TensorOptions(at::kByte).device(device_));
  }
  Slice on_device = slice;
  int64_t offset = 0;
  for (at::Tensor& tensor : on_device) {
    if (!is_staged(tensor)) continue;
    const int64_t place = offset;
    offset += aligned_bytes(tensor);
    tensor = buffer.memory.narrow(0, place, static_cast<int64_t>(tensor.nbytes())).view(tensor.scalar_type());
  }
  buffer.ready = upload_.run([&] {
    SideStream::wait(buffer.free);
    for (size_t i = 0; i < slice.size(); ++i) {
      if (is_staged(slice[i])) on_device[i].copy_(slice[i], /*non_blocking=*/true);
    }
  });
  return on_device;
}

void StagedUpdate::end(const Slice& slice, const Slice& on_device, Buffer& buffer) {
  StreamPoint emptied = download_.run([&] {
    for (size_t i = 0; i < slice.size(); ++i) {
      if (is_staged(slice[i])) slice[i].copy_(on_device[i], /*non_blocking=*/true);
    }
  });
  buffer.free = std::move(emptied);
}

}  // namespace flowshard::fsdp
