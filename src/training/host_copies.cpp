#include "training/host_copies.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "core/error.h"
#include "fsdp/host_memory.h"

namespace flowshard::training {

std::vector<checkpoint::GroupShards> HostCopies::copy(
    size_t num_groups, const std::function<checkpoint::GroupShards(size_t)>& group) {
  const at::NoGradGuard no_grad;
  std::vector<checkpoint::GroupShards> copies;
  size_t next = 0;
  for (size_t i = 0; i < num_groups; ++i) {
    copies.push_back(group(i));
    for (auto& [name, values] : copies.back().states) {
      if (next == buffers_.size()) {
        buffers_.push_back(device_.is_cpu() ? at::empty({values.numel()}, values.scalar_type())
                                            : fsdp::pinned_zeros(values.numel(), values.scalar_type()));
      }
      const at::Tensor& buffer = buffers_.at(next++);
      check(buffer.numel() == values.numel() && buffer.scalar_type() == values.scalar_type(),
            "every copy has the same sizes");
      // Values made for this call may be freed at once: their memory is used again on the same stream only.
      buffer.copy_(values, /*non_blocking=*/true);
      values = buffer;
    }
  }
  if (!device_.is_cpu()) c10::impl::VirtualGuardImpl(device_.type()).getStream(device_).synchronize();
  return copies;
}

}  // namespace flowshard::training
