// Writing a sharded training checkpoint beside training. Format and order of events:
// docs/checkpoint_format.md. Files are written by background threads, which make no collectives; the ranks'
// own threads agree, when they ask, on how far all have come.
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
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

/// How far the ranks have come: the value of all is the largest of theirs.
enum class Progress { kDone, kFailed, kRunning, kLate };

/// Called on every rank at the same points with its own progress: returns that of all. With one rank it
/// returns its argument.
using Agree = std::function<Progress(Progress own)>;

struct SaveOptions {
  std::filesystem::path folder;  // of all checkpoints of the run; it is made if need be
  int64_t rank = 0;
  int64_t num_shards = 1;  // ranks from this one on write nothing (no_shard: 1)
  int64_t keep = 0;        // the newest this many are kept, the one being saved included; 0: all
  /// Called by the thread that writes this rank's shard before it reads the tensors; may be empty.
  std::function<void()> before_reading = {};
  std::chrono::seconds deadline =
      std::chrono::hours(6);  // slow storage stays below it, dead storage does not
};

/// One save, the only one of its run at a time. Every rank makes the same calls, from one thread. Destroyed
/// before it is done, it leaves its thread to itself: the process must end soon, or the thread's work.
class CheckpointSave {
 public:
  /// Starts to write STEP. The layouts are the same on all ranks; `state` is used on rank 0. The tensors of
  /// ranks that write must not change until the save is done.
  CheckpointSave(const SaveOptions& options, std::vector<GroupShards> groups, const TrainingState& state);

  /// One agreement: whether the checkpoint is safe on disk, published, and older ones are removed. After that
  /// the save is not asked again. If any rank failed, throws CheckpointError on every rank: by then nothing
  /// is left of this checkpoint and the earlier ones are untouched; if only the removal of an older one
  /// failed, the new one stays. Throws it also when the deadline has passed: then parts may be left.
  bool poll(const Agree& agree);

  /// Asks until the checkpoint is safe: no single agreement waits long for another rank's storage.
  void wait(const Agree& agree);

  /// "step-00000200"
  std::string name() const;

 private:
  class Files;
  enum class Stage { kFolder, kShards, kPublishing, kRemoval };

  void begin(Stage stage);
  Progress own_progress();
  [[noreturn]] void throw_error() const;

  std::shared_ptr<const Files> files_;  // shared with the thread
  std::chrono::steady_clock::time_point deadline_;
  Stage stage_ = Stage::kFolder;
  std::future<void> work_;    // of the stage; not valid if this rank has no part in it or is done with it
  std::exception_ptr error_;  // of this rank
};

}  // namespace flowshard::checkpoint
