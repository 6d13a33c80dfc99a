#include "inference/device_memory.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "core/free_host_memory.h"

namespace flowshard::inference {
namespace {

c10::DeviceAllocator& allocator_of(c10::Device device) {
  at::globalContext().lazyInitDevice(device.type());
  return *c10::getDeviceAllocator(device.type());
}

constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

}  // namespace

int64_t free_memory(c10::Device device) {
  if (device.is_cpu()) return free_host_memory();
  c10::DeviceAllocator& allocator = allocator_of(device);
  const auto stats = allocator.getDeviceStats(device.index());
  return static_cast<int64_t>(allocator.getMemoryInfo(device.index()).first) +
         stats.reserved_bytes[kAll].current - stats.allocated_bytes[kAll].current;
}

void release_unused_memory(c10::Device device) {
  if (!device.is_cpu()) allocator_of(device).emptyCache();
}

void synchronize(c10::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

void reset_peak_memory(c10::Device device) {
  if (!device.is_cpu()) allocator_of(device).resetPeakStats(device.index());
}

int64_t peak_memory(c10::Device device) {
  if (device.is_cpu()) return 0;
  return allocator_of(device).getDeviceStats(device.index()).allocated_bytes[kAll].peak;
}

}  // namespace flowshard::inference
