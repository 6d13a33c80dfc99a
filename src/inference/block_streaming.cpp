#include "inference/block_streaming.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "core/error.h"
#include "inference/memory_plan.h"

namespace flowshard::inference {
namespace {

// Where the parameters begin in a block's flat memory: matrix products want aligned weights.
constexpr int64_t kAlignment = 128;  // elements

constexpr int64_t kPieceBytes = int64_t{4} << 30;

int64_t padded(int64_t numel) { return (numel + kAlignment - 1) / kAlignment * kAlignment; }

int64_t numel_of(const BlockPart& part) {
  int64_t numel = 0;
  for (const nn::Parameter* parameter : part.parameters) numel += padded(parameter->numel());
  return numel;
}

/// Makes the parameters views of `flat`.
void place(const BlockPart& part, const at::Tensor& flat) {
  int64_t offset = 0;
  for (nn::Parameter* parameter : part.parameters) {
    parameter->value = flat.narrow(0, offset, parameter->numel()).view(parameter->shape);
    offset += padded(parameter->numel());
  }
}

}  // namespace

StreamingRunner::StreamingRunner(std::vector<BlockPart> parts, size_t num_resident,
                                 const at::TensorOptions& options)
    : options_(options) {
  check(num_resident <= parts.size(), "at most every block stays on the device");
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!is_streamed(i, parts.size(), num_resident)) {
      nn::materialize(parts[i].parameters, options);
      continue;
    }
    index_of_[parts[i].block] = streamed_.size();
    largest_ = std::max(largest_, numel_of(parts[i]));
    streamed_.push_back({std::move(parts[i]), at::Tensor()});
  }
  allocate_host_memory();
  if (options.device().is_cpu()) return;
  copy_stream_ =
      c10::impl::VirtualGuardImpl(options.device().type()).getStreamFromGlobalPool(options.device());
  for (Slot& slot : slots_) {
    slot.filled.emplace(options.device().type());
    slot.used.emplace(options.device().type());
  }
}

void StreamingRunner::allocate_host_memory() {
  const bool on_gpu = !options_.device().is_cpu();
  if (on_gpu) {  // Several threads touch the pages; otherwise a gigabyte takes most of a second.
    c10::CachingAllocator::setAllocatorSettings(
        "pinned_use_cuda_host_register:True,pinned_num_register_threads:8");
  }
  // The allocator of pinned memory rounds up to powers of two: blocks share pieces of such a size.
  const auto element_bytes =
      static_cast<int64_t>(c10::elementSize(c10::typeMetaToScalarType(options_.dtype())));
  const int64_t piece_numel = kPieceBytes / element_bytes;
  int64_t rest = 0, offset = 0;
  for (const StreamedBlock& block : streamed_) rest += numel_of(block.part);
  at::Tensor piece;
  for (StreamedBlock& block : streamed_) {
    const int64_t numel = numel_of(block.part);
    if (!piece.defined() || offset + numel > piece.numel()) {
      piece = at::empty({std::max(numel, std::min(rest, piece_numel))},
                        options_.device(at::kCPU).pinned_memory(on_gpu));
      offset = 0;
    }
    block.host = piece.narrow(0, offset, numel);
    place(block.part, block.host);
    offset += numel;
    rest -= numel;
  }
}

void StreamingRunner::start() {
  for (const StreamedBlock& block : streamed_) {
    for (nn::Parameter* parameter : block.part.parameters) {
      parameter->value = at::Tensor();
      for (nn::LowRankTerm& term : parameter->low_rank) {
        for (at::Tensor* tensor : {&term.down, &term.up, &term.row_scale}) {
          if (tensor->defined()) *tensor = tensor->to(options_.device());
        }
      }
    }
  }
}

void StreamingRunner::release_buffers() {
  for (Slot& slot : slots_) {
    if (copy_stream_) slot.filled->synchronize();
    slot.memory = at::Tensor();
  }
  has_fetched_ = false;
}

c10::Stream StreamingRunner::compute_stream() const {
  return c10::impl::VirtualGuardImpl(options_.device().type()).getStream(options_.device());
}

void StreamingRunner::fetch(size_t position) {
  const at::NoGradGuard no_grad;
  Slot& slot = slot_at(position);
  const at::Tensor& host = streamed_[position % streamed_.size()].host;
  if (!slot.memory.defined()) {
    slot.memory = at::empty({largest_}, options_);
    // The allocator's memory may still be in use by what was enqueued before.
    if (copy_stream_) slot.used->record(compute_stream());
  }
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
  if (!has_fetched_ || position_ % streamed_.size() != found->second) {  // or the last pass ended early
    position_ = found->second;
    fetch(position_);
    fetch(position_ + 1);
    has_fetched_ = true;
  }
  Slot& slot = slot_at(position_);
  const BlockPart& part = streamed_[found->second].part;
  if (copy_stream_) slot.filled->block(compute_stream());
  place(part, slot.memory);
  nn::Tensors outputs = block(inputs);
  for (nn::Parameter* parameter : part.parameters) parameter->value = at::Tensor();
  if (copy_stream_) slot.used->record(compute_stream());
  fetch(position_ + slots_.size());
  ++position_;
  return outputs;
}

}  // namespace flowshard::inference
