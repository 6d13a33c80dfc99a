#include "training/host_copies.h"

#include "core/error.h"
#include "fsdp/host_memory.h"

namespace flowshard::training {

void HostCopies::reserve(size_t num_groups, const Groups& group) {
  if (!buffers_.empty()) return;
  for (size_t i = 0; i < num_groups; ++i) {
    for (const auto& [name, values] : group(i).states) {
      buffers_.push_back(device_.is_cpu() ? at::empty({values.numel()}, values.scalar_type())
                                          : fsdp::pinned_zeros(values.numel(), values.scalar_type()));
    }
  }
}

std::vector<checkpoint::GroupShards> HostCopies::copy(size_t num_groups, const Groups& group,
                                                      bool made_for_call) {
  const at::NoGradGuard no_grad;
  std::vector<checkpoint::GroupShards> copies;
  size_t next = 0;
  done_ = std::make_shared<fsdp::StreamPoint>();
  for (size_t i = 0; i < num_groups; ++i) {
    copies.push_back(group(i));
    *done_ = stream_.run([&] {
      for (auto& [name, values] : copies.back().states) {
        const at::Tensor& buffer = buffers_.at(next++);
        check(buffer.numel() == values.numel() && buffer.scalar_type() == values.scalar_type(),
              "every copy has the sizes that were reserved");
        buffer.copy_(values, /*non_blocking=*/true);
      }
    });
    if (made_for_call && *done_) (*done_)->synchronize();
    size_t buffer = next - copies.back().states.size();
    for (auto& [name, values] : copies.back().states) values = buffers_[buffer++];
  }
  return copies;
}

std::function<void()> HostCopies::arrived() const {
  return [done = done_] {
    if (*done) (*done)->synchronize();
  };
}

}  // namespace flowshard::training
