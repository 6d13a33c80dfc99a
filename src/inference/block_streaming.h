// Runs a model whose blocks do not all fit on the device: their weights stay in pinned host memory, and each
// block's are copied to the device shortly before it runs, while blocks before it compute. One thread.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>

#include <array>
#include <map>
#include <optional>
#include <vector>

#include "nn/block_runner.h"

namespace flowshard::inference {

/// The parameters of a block that one runner looks after.
struct BlockPart {
  const nn::ParameterGroup* block;
  std::vector<nn::Parameter*> parameters;
};

class StreamingRunner : public nn::BlockRunner {
 public:
  /// `parts` in the order of execution. Materializes their parameters: of `num_resident` of them on the
  /// device for good (is_streamed() says which), of the others on the host. Fill them, then call start().
  StreamingRunner(std::vector<BlockPart> parts, size_t num_resident, const at::TensorOptions& options);

  /// From now on the streamed parameters are undefined while their block does not run. Their low-rank terms
  /// move to the device.
  void start();

  /// Gives the two buffers on the device back until the next run.
  void release_buffers();

  /// The next block in order arrives while this one computes; out of order works, but waits.
  nn::Tensors run(const nn::ParameterGroup& group, const nn::BlockFunction& block,
                  const nn::Tensors& inputs) override;

 private:
  struct StreamedBlock {
    BlockPart part;
    at::Tensor host;  // all parameters one after another
  };
  struct Slot {
    at::Tensor memory;  // on the device; undefined while released
    std::optional<c10::Event> filled, used;
  };

  void allocate_host_memory();
  c10::Stream compute_stream() const;

  // [Note: positions] Streamed block p % n runs at position p, in slot p % 2, over and over. When position p
  // runs, p and p + 1 have been fetched; at other times nothing may have.
  void fetch(size_t position);
  Slot& slot_at(size_t position) { return slots_[position % slots_.size()]; }

  at::TensorOptions options_;
  int64_t largest_ = 0;                     // elements of a streamed block
  std::optional<c10::Stream> copy_stream_;  // none on a CPU
  std::vector<StreamedBlock> streamed_;
  std::map<const nn::ParameterGroup*, size_t> index_of_;  // in streamed_
  std::array<Slot, 2> slots_;
  size_t position_ = 0;
  bool has_fetched_ = false;
};

}  // namespace flowshard::inference
