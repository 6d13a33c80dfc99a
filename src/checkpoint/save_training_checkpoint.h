// Writing a sharded training checkpoint. Format and order of events: docs/checkpoint_format.md.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/group_layout.h"
#include "checkpoint/training_state.h"

namespace flowshard::checkpoint {

/// One parameter group of the model and this rank's shard of each of its states.
struct GroupShards {
  GroupLayout layout;
  /// "model", "exp_avg", ...: [padded_numel / num_shards], fp32, bf16 or fp16, a state's dtype the same on
  /// all ranks. States in blockwise codes are given as the fp32 values that they stand for.
  std::vector<std::pair<std::string, at::Tensor>> states;
};

/// Called on every rank at the same points: returns whether every rank passed true. With one rank it returns
/// its argument.
using Agree = std::function<bool(bool ok)>;

struct SaveOptions {
  std::filesystem::path folder;  // of all checkpoints of the run; it is made if need be
  int64_t rank = 0;
  int64_t num_shards = 1;  // ranks from this one on write nothing (no_shard: 1)
  int64_t keep = 0;        // the newest this many are kept, the one being saved included; 0: all
};

/// Writes STEP, publishes it and removes older ones. Called by every rank with the same layouts; `state` is
/// used on rank 0. Does not return before the checkpoint is safe on disk, on any rank; the tensors must not
/// change meanwhile. If any rank fails, every rank throws CheckpointError, nothing is left of this checkpoint
/// and the earlier ones are untouched; if only the removal of an older one fails, the new one stays.
void save_training_checkpoint(const SaveOptions& options, const std::vector<GroupShards>& groups,
                              const TrainingState& state, const Agree& agree);

}  // namespace flowshard::checkpoint
