// The checkpoints of one training run: what goes into them and comes out of them (format:
// docs/checkpoint_format.md). Every rank makes the same calls.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/checkpoint_save.h"
#include "checkpoint/group_layout.h"
#include "distributed/process_group.h"
#include "fsdp/fully_shard.h"
#include "training/host_copies.h"
#include "training/loss_scale.h"
#include "training/optimizer.h"
#include "training/train_config.h"

namespace flowshard::training {

class RunCheckpoints {
 public:
  RunCheckpoints(const TrainConfig& config, const std::filesystem::path& base_model,
                 distributed::ProcessGroup& ranks, at::Device device, const fsdp::ShardedState& state,
                 Optimizer& optimizer, LossScale& loss_scale);

  /// Starts to save the step that the optimizer has reached, as it is now. No save may be in flight. Training
  /// may go on at once if checkpoint.async is set, up to wait_for_copies(), else when finish_save() has
  /// returned.
  void start_save(int64_t samples_seen, uint64_t data_fingerprint);

  /// Takes the host memory of copies, so that no save has to wait for it.
  void reserve_copies();

  /// Returns when what start_save() saves may change.
  void wait_for_copies() const { copies_.arrived()(); }

  /// Whether a save is in flight: the same on every rank.
  bool is_saving() const { return save_.has_value(); }

  /// Asks once whether the save in flight is done, or until it is. Returns its name when it is safe on disk.
  /// Throws CheckpointError on every rank if any rank failed (checkpoint/checkpoint_save.h).
  std::optional<std::string> poll_save();
  std::string finish_save();

  struct Position {
    int64_t samples_seen = 0;
    uint64_t data_fingerprint = 0;
    bool is_own = true;  // the checkpoint lies in this run's output folder
  };
  /// Restores masters, moments, averages, the step counts and the loss scale from the newest checkpoint of
  /// the run that every rank can read, written with any number of ranks. Warns on stderr of newer ones that
  /// are damaged. Returns where the data stood, or nothing if there is no checkpoint. Throws CheckpointError
  /// if none is sound.
  std::optional<Position> load_latest();

  /// The same from `path`, a checkpoint or the output folder of a run, as docs/checkpoint_format.md says.
  /// Throws ConfigError if the output folder holds checkpoints and `path` is neither the newest of them nor
  /// what they were started from.
  Position load_from(const std::filesystem::path& path);

  /// Throws ConfigError if a run with this output folder finds nothing to load_from(path).
  static void require_checkpoint(const std::filesystem::path& path, const std::filesystem::path& output);

  /// Throws ConfigError, which names `setting`, if a checkpoint could not say that it depends on `path`.
  static void require_storable(const std::filesystem::path& path, std::string_view setting);

  /// Throws ConfigError if the folder `output` of a run holds a checkpoint: a fresh run would mix with it.
  static void require_none(const std::filesystem::path& output);

 private:
  checkpoint::GroupShards shards_of(size_t group) const;
  bool copies_shards() const;
  /// Then shards_of() makes tensors of its own, of which all groups at once would not fit.
  bool decodes_on_gpu() const;
  checkpoint::Progress agree(checkpoint::Progress own);
  /// Newest first, as rank 0 sees them.
  std::vector<std::filesystem::path> checkpoints_in(const std::filesystem::path& folder);
  /// The first of `paths` that every rank can read; there is one at least.
  Position load_first(const std::vector<std::filesystem::path>& paths);
  Position load(const std::filesystem::path& path);

  TrainConfig config_;
  std::filesystem::path base_model_, folder_;
  distributed::ProcessGroup& ranks_;
  at::Device device_;
  const fsdp::ShardedState& state_;
  Optimizer& optimizer_;
  LossScale& loss_scale_;
  std::string run_id_;
  std::string started_from_;  // the path that load_from() was given; "" if it was not
  HostCopies copies_;
  std::optional<checkpoint::CheckpointSave> save_;  // in flight
};

}  // namespace flowshard::training
