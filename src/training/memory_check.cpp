#include "training/memory_check.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/format.h>

namespace flowshard::training {

std::string memory_beside_estimate(const MemoryEstimate& estimate, at::Device device) {
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  return fmt::format("memory of {}: {} of tensors predicted, at most {} in use so far ({} reserved)",
                     device.str(), gibibytes(estimate.tensors()), gibibytes(stats.allocated_bytes[kAll].peak),
                     gibibytes(stats.reserved_bytes[kAll].peak));
}

}  // namespace flowshard::training
