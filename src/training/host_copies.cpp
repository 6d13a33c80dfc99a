#include "training/host_copies.h"

#include <algorithm>

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

// [Note: copies in slices] The transfers to the host that a step makes, such as its loss, queue behind those
// that are under way: at once, all copies would hold training up as long as they last. So a thread hands the
// GPU one slice after the other.
void HostCopies::copy_in_slices(const std::vector<Copy>& copies, const fsdp::StreamPoint& begin) {
  constexpr int64_t kSlice = int64_t{1} << 23;  // values
  const at::NoGradGuard no_grad;
  fsdp::SideStream::wait_on_host(begin);
  for (const auto& [from, to] : copies) {
    for (int64_t first = 0; first < from.numel(); first += kSlice) {
      const int64_t count = std::min(kSlice, from.numel() - first);
      fsdp::SideStream::wait_on_host(stream_.run_behind({}, [&, &from = from, &to = to] {
        to.narrow(0, first, count).copy_(from.narrow(0, first, count), /*non_blocking=*/true);
      }));
    }
  }
}

std::vector<checkpoint::GroupShards> HostCopies::copy(size_t num_groups, const Groups& group,
                                                      bool made_for_call) {
  const at::NoGradGuard no_grad;
  std::vector<checkpoint::GroupShards> groups;
  std::vector<Copy> copies;
  size_t next = 0;
  for (size_t i = 0; i < num_groups; ++i) {
    groups.push_back(group(i));
    for (auto& [name, values] : groups.back().states) {
      const at::Tensor& buffer = buffers_.at(next++);
      check(buffer.numel() == values.numel() && buffer.scalar_type() == values.scalar_type(),
            "every copy has the sizes that were reserved");
      // What lies in host memory is copied here: the optimizer's next step need not wait on a GPU for it.
      if (made_for_call || values.is_cpu()) {
        buffer.copy_(values);
      } else {
        copies.push_back({values, buffer});
      }
      values = buffer;
    }
  }
  auto begin = std::make_shared<fsdp::StreamPoint>(stream_.here());
  copied_ = std::async(std::launch::async, [this, copies, begin] { copy_in_slices(copies, *begin); });
  return groups;
}

std::function<void()> HostCopies::arrived() const {
  return [copied = copied_] {
    if (copied.valid()) copied.get();
  };
}

}  // namespace flowshard::training
