#include "checkpoint/copy_weights.h"

#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>

#include "checkpoint/weights.h"

namespace flowshard::checkpoint {
namespace {

// Large enough that a transfer runs at full speed, small enough that every thread has work.
constexpr int64_t kChunkBytes = int64_t{8} << 20;

/// Some rows of one copy.
struct Chunk {
  const WeightCopy* copy;
  int64_t row, rows;

  at::Tensor destination() const { return copy->destination.narrow(0, row, rows); }
  /// In the dtype of the file, or fp32 if there is a scale.
  at::Tensor stored() const {
    const at::Tensor part = copy->stored.narrow(0, row, rows);
    if (!copy->scale.defined()) return part;
    return dequantized(part, copy->scale.numel() > 1 ? copy->scale.narrow(0, row, rows) : copy->scale);
  }
};

int64_t size_in_bytes(const at::Tensor& tensor) { return tensor.numel() * tensor.element_size(); }

std::vector<Chunk> in_chunks(const std::vector<WeightCopy>& copies) {
  std::vector<Chunk> chunks;
  for (const WeightCopy& copy : copies) {
    const int64_t rows = copy.destination.size(0);
    if (copy.destination.numel() == 0) continue;
    const int64_t rows_each = std::max<int64_t>(1, kChunkBytes / (size_in_bytes(copy.destination) / rows));
    for (int64_t row = 0; row < rows; row += rows_each) {
      chunks.push_back({&copy, row, std::min(rows_each, rows - row)});
    }
  }
  return chunks;
}

/// What one thread fills while the GPU still reads what it filled before.
class PinnedBuffers {
 public:
  void send(const at::Tensor& stored, const at::Tensor& destination) {
    Buffer& buffer = buffers_[next_];
    next_ = (next_ + 1) % buffers_.size();
    buffer.sent.synchronize();
    const int64_t bytes = size_in_bytes(destination);
    if (!buffer.memory.defined() || buffer.memory.numel() < bytes) {
      buffer.memory =
          at::empty({std::max(bytes, kChunkBytes)}, at::TensorOptions(at::kByte).pinned_memory(true));
    }
    const at::Tensor staged =
        buffer.memory.narrow(0, 0, bytes).view(destination.scalar_type()).view(destination.sizes());
    staged.copy_(stored);
    destination.copy_(staged, /*non_blocking=*/true);
    buffer.sent.record(
        c10::impl::VirtualGuardImpl(destination.device().type()).getStream(destination.device()));
  }

  void wait() {
    for (Buffer& buffer : buffers_) buffer.sent.synchronize();
  }

 private:
  struct Buffer {
    at::Tensor memory;
    c10::Event sent{c10::DeviceType::CUDA};
  };
  std::array<Buffer, 2> buffers_;
  size_t next_ = 0;
};

}  // namespace

void copy_weights(const std::vector<WeightCopy>& copies) {
  const std::vector<Chunk> chunks = in_chunks(copies);
  std::atomic<size_t> next = 0;
  // Each thread takes chunks until there are none. Within parallel_for ATen's own operations use one thread.
  at::parallel_for(0, at::get_num_threads(), 1, [&](int64_t, int64_t) {
    const at::NoGradGuard no_grad;
    std::optional<PinnedBuffers> buffers;
    for (size_t i; (i = next++) < chunks.size();) {
      const at::Tensor destination = chunks[i].destination();
      if (destination.is_cpu()) {
        destination.copy_(chunks[i].stored());
        continue;
      }
      const c10::DeviceGuard guard(destination.device());
      if (!buffers) buffers.emplace();
      buffers->send(chunks[i].stored(), destination);
    }
    if (buffers) buffers->wait();
  });
}

}  // namespace flowshard::checkpoint
