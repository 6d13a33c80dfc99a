// The checkpoints of one training run: what goes into them and comes out of them (format:
// docs/checkpoint_format.md). Every rank makes the same calls.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "checkpoint/group_layout.h"
#include "distributed/process_group.h"
#include "fsdp/fully_shard.h"
#include "training/loss_scale.h"
#include "training/optimizer.h"
#include "training/train_config.h"

namespace flowshard::training {

class RunCheckpoints {
 public:
  RunCheckpoints(const TrainConfig& config, const std::filesystem::path& base_model,
                 distributed::ProcessGroup& ranks, const fsdp::ShardedState& state, Optimizer& optimizer,
                 LossScale& loss_scale);

  /// Writes the step that the optimizer has reached and returns its name. Returns when it is safe on disk.
  /// Throws CheckpointError on every rank if any rank failed.
  std::string save(int64_t samples_seen, uint64_t data_fingerprint);

  struct Position {
    int64_t samples_seen = 0;
    uint64_t data_fingerprint = 0;
  };
  /// Restores masters, moments, averages, the step counts and the loss scale from the newest checkpoint of
  /// the run that every rank can read, written with any number of ranks. Warns on stderr of newer ones that
  /// are damaged. Returns where the data stood, or nothing if there is no checkpoint. Throws CheckpointError
  /// if none is sound.
  std::optional<Position> load_latest();

  /// Throws ConfigError if the output folder holds a checkpoint: a fresh run would mix with it.
  void require_none() const;

 private:
  at::Device device() const;
  bool agree(bool ok);
  std::vector<int64_t> published_steps();  // newest first, as rank 0 sees them
  Position load(const std::filesystem::path& path);

  TrainConfig config_;
  std::filesystem::path base_model_, folder_;
  distributed::ProcessGroup& ranks_;
  const fsdp::ShardedState& state_;
  Optimizer& optimizer_;
  LossScale& loss_scale_;
  std::string run_id_;
};

}  // namespace flowshard::training
