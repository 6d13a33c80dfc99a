#include "fsdp/side_stream.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace flowshard::fsdp {
namespace {

c10::Stream current_stream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

SideStream::SideStream(at::Device device) {
  if (!device.is_cpu()) {
    stream_ =
        c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/true);
  }
}

StreamPoint SideStream::here() const {
  if (!stream_) return {};
  StreamPoint point(std::in_place, stream_->device_type());
  point->record(current_stream(stream_->device()));
  return point;
}

StreamPoint SideStream::run_behind(const StreamPoint& point, const std::function<void()>& work) {
  if (!stream_) {
    work();
    return {};
  }
  if (point) point->block(*stream_);
  const c10::StreamGuard guard(*stream_);
  work();
  StreamPoint end(std::in_place, stream_->device_type());
  end->record(*stream_);
  return end;
}

void SideStream::wait(const StreamPoint& point) {
  if (point) point->block(current_stream(point->device()));
}

}  // namespace flowshard::fsdp
