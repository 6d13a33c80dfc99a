#include "inference/block_streaming.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "core/error.h"
#include "inference/memory_plan.h"

namespace flowshard::inference {
namespace {

// Where the parameters begin in a block's flat memory: matrix products want aligned weights.
constexpr int64_t kAlignment = 128;  // elements

int64_t padded(int64_t numel) { return (numel + kAlignment - 1) / kAlignment * kAlignment; }

int64_t numel_of(const nn::ParameterGroup& group) {
  int64_t numel = 0;
  for (const nn::Parameter* parameter : group.parameters) numel += padded(parameter->numel());
  return numel;
}

/// Makes the group's parameters views of `flat`.
void place(const nn::ParameterGroup& group, const at::Tensor& flat) {
  int64_t offset = 0;
  for (nn::Parameter* parameter : group.parameters) {
    parameter->value = flat.narrow(0, offset, parameter->numel()).view(parameter->shape);
    offset += padded(parameter->numel());
  }
}

}  // namespace

StreamingRunner::StreamingRunner(const std::vector<nn::ParameterGroup*>& blocks, size_t num_resident,
                                 const at::TensorOptions& options)
    : options_(options) {
  check(num_resident <= blocks.size(), "at most every block stays on the device");
  int64_t largest = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (!is_streamed(i, blocks.size(), num_resident)) {
      nn::materialize(blocks[i]->parameters, options);
      continue;
    }
    const bool on_gpu = !options.device().is_cpu();
    const at::Tensor host = at::empty({numel_of(*blocks[i])}, options.device(at::kCPU).pinned_memory(on_gpu));
    place(*blocks[i], host);
    index_of_[blocks[i]] = streamed_.size();
    streamed_.push_back({blocks[i], host});
    largest = std::max(largest, host.numel());
  }
  for (Slot& slot : slots_) slot.memory = at::empty({largest}, options);
  if (options.device().is_cpu()) return;
  copy_stream_ =
      c10::impl::VirtualGuardImpl(options.device().type()).getStreamFromGlobalPool(options.device());
  for (Slot& slot : slots_) {
    slot.filled.emplace(options.device().type());
    slot.used.emplace(options.device().type());
  }
}

void StreamingRunner::start() {
  for (const StreamedBlock& block : streamed_) {
    for (nn::Parameter* parameter : block.group->parameters) {
      parameter->value = at::Tensor();
      for (nn::LowRankTerm& term : parameter->low_rank) {
        for (at::Tensor* tensor : {&term.down, &term.up, &term.row_scale}) {
          if (tensor->defined()) *tensor = tensor->to(options_.device());
        }
      }
    }
  }
  if (streamed_.empty()) return;
  fetch(0);
  fetch(1);
}

void StreamingRunner::fetch(size_t position) {
  const at::NoGradGuard no_grad;
  Slot& slot = slot_at(position);
  const at::Tensor& host = streamed_[position % streamed_.size()].host;
  const at::Tensor destination = slot.memory.narrow(0, 0, host.numel());
  if (!copy_stream_) {
    destination.copy_(host);
    return;
  }
  slot.used->block(*copy_stream_);
  const c10::StreamGuard guard(*copy_stream_);
  destination.copy_(host, /*non_blocking=*/true);
  slot.filled->record(*copy_stream_);
}

nn::Tensors StreamingRunner::run(const nn::ParameterGroup& group, const nn::BlockFunction& block,
                                 const nn::Tensors& inputs) {
  const auto found = index_of_.find(&group);
  if (found == index_of_.end()) return block(inputs);
  if (position_ % streamed_.size() != found->second) {  // a pass before this one ended early
    position_ = found->second;
    fetch(position_);
    fetch(position_ + 1);
  }
  Slot& slot = slot_at(position_);
  const auto stream = [&] {
    return c10::impl::VirtualGuardImpl(options_.device().type()).getStream(options_.device());
  };
  if (copy_stream_) slot.filled->block(stream());
  place(group, slot.memory);
  nn::Tensors outputs = block(inputs);
  for (nn::Parameter* parameter : group.parameters) parameter->value = at::Tensor();
  if (copy_stream_) slot.used->record(stream());
  fetch(position_ + slots_.size());
  ++position_;
  return outputs;
}

}  // namespace flowshard::inference
