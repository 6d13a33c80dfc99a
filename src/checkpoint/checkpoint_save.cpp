#include "checkpoint/checkpoint_save.h"

#include <thread>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_json.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "core/error.h"
#include "storage/atomic_file.h"

namespace flowshard::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSlackBytes = int64_t{1} << 20;  // for the small files
constexpr std::chrono::milliseconds kAskingInterval{20};

}  // namespace

/// The files of one save, as its stages change them.
class CheckpointSave::Files {
 public:
  Files(const SaveOptions& options, std::vector<GroupShards> groups, const TrainingState& state)
      : options_(options),
        groups_(std::move(groups)),
        state_(state),
        path_(options.folder / step_folder_name(state.step)),
        temporary_path_(temporary_path_of(path_)) {
    layout_.num_shards = options.num_shards;
    for (const GroupShards& group : groups_) {
      layout_.groups.push_back({group.layout, {}});
      for (const auto& [name, values] : group.states) {
        layout_.groups.back().states.push_back({name, values.scalar_type()});
      }
    }
    check(state.step >= 0, "a step is not negative");
    const std::string fault = fault_of(layout_);
    check(fault.empty(), fault);
  }

  bool takes_part(Stage stage) const {
    return stage == Stage::kShards ? options_.rank < options_.num_shards : options_.rank == 0;
  }

  void run(Stage stage) const {
    switch (stage) {
      case Stage::kFolder:
        return make_folder();
      case Stage::kShards:
        return write_shard();
      case Stage::kPublishing:
        publish();
        return remove_older();
      case Stage::kRemoval:
        return remove();
    }
  }

  const fs::path& path() const { return path_; }

 private:
  // Rank 0, before any other rank writes.
  void make_folder() const {
    std::error_code error;
    fs::create_directories(options_.folder, error);
    if (error)
      throw CheckpointError("cannot make the folder {}: {}", options_.folder.string(), error.message());
    remove_leftovers(options_.folder);
    require_space();
    fs::create_directory(temporary_path_, error);
    if (error)
      throw CheckpointError("cannot make the folder {}: {}", temporary_path_.string(), error.message());
  }

  // Ranks below num_shards.
  void write_shard() const {
    if (options_.before_reading) options_.before_reading();
    std::vector<NamedTensor> tensors;
    for (const GroupShards& group : groups_) {
      const int64_t shard_numel = group.layout.padded_numel / options_.num_shards;
      for (const auto& [name, values] : group.states) {
        check(values.dim() == 1 && values.numel() == shard_numel,
              fmt::format("{} of group '{}' is not [{}]", name, group.layout.name, shard_numel));
        tensors.emplace_back(name + "/" + group.layout.name, values);
      }
    }
    const storage::FileDigest digest = write_safetensors(
        temporary_path_ / shard_file_name(options_.rank, options_.num_shards), tensors, {{"format", "pt"}});
    storage::write_file(digest_path(options_.rank), to_json(digest).dump());
  }

  // Rank 0, when every rank has written.
  void publish() const {
    Manifest manifest;
    for (int64_t rank = 0; rank < options_.num_shards; ++rank) {
      const std::string name = shard_file_name(rank, options_.num_shards);
      manifest[name] = digest_from_json(read_json(digest_path(rank)), digest_path(rank).string());
    }
    verify(manifest, temporary_path_, false);
    manifest[kLayoutName] =
        storage::write_file(temporary_path_ / kLayoutName, to_json(layout_).dump(1) + "\n");
    manifest[kStateName] = storage::write_file(temporary_path_ / kStateName, to_text(state_));
    storage::write_file(temporary_path_ / kManifestName, to_text(manifest));
    for (int64_t rank = 0; rank < options_.num_shards; ++rank) fs::remove(digest_path(rank));
    storage::sync_folder(temporary_path_);
    publish_checkpoint(path_);
  }

  // Rank 0, after a failure, when no rank writes any more.
  void remove() const noexcept {
    std::error_code ignored;  // the failure itself is what is reported
    fs::remove_all(temporary_path_, ignored);
  }

  void remove_older() const {
    if (options_.keep > 0) {
      remove_old_checkpoints(options_.folder, state_.run_id, state_.step, options_.keep);
    }
  }

  fs::path digest_path(int64_t rank) const {
    return temporary_path_ / (shard_file_name(rank, options_.num_shards) + ".digest");
  }

  void require_space() const {
    int64_t needed = kSlackBytes;
    for (const GroupShards& group : groups_) {
      for (const auto& [name, values] : group.states) {
        needed += group.layout.padded_numel * static_cast<int64_t>(values.element_size());
      }
    }
    std::error_code error;
    const fs::space_info space = fs::space(options_.folder, error);
    if (!error && space.available < static_cast<uintmax_t>(needed)) {
      throw CheckpointError(
          "cannot save {}: it takes {} MB and only {} MB are free there (free some space or keep "
          "fewer checkpoints)",
          path_.string(), needed / 1'000'000, space.available / 1'000'000);
    }
  }

  SaveOptions options_;
  std::vector<GroupShards> groups_;
  TrainingState state_;
  fs::path path_;
  fs::path temporary_path_;
  CheckpointLayout layout_;
};

CheckpointSave::CheckpointSave(const SaveOptions& options, std::vector<GroupShards> groups,
                               const TrainingState& state)
    : files_(std::make_shared<const Files>(options, std::move(groups), state)),
      deadline_(std::chrono::steady_clock::now() + options.deadline) {
  begin(Stage::kFolder);
}

std::string CheckpointSave::name() const { return files_->path().filename().string(); }

void CheckpointSave::begin(Stage stage) {
  stage_ = stage;
  if (!files_->takes_part(stage)) return;
  std::packaged_task<void()> task([files = files_, stage] { files->run(stage); });
  work_ = task.get_future();
  // Not joined: storage that hangs must not keep the process from ending. The future tells when it is done.
  std::thread(std::move(task)).detach();
}

Progress CheckpointSave::own_progress() {
  if (work_.valid()) {
    if (work_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      return std::chrono::steady_clock::now() < deadline_ ? Progress::kRunning : Progress::kLate;
    }
    try {
      work_.get();
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  return error_ ? Progress::kFailed : Progress::kDone;
}

bool CheckpointSave::poll(const Agree& agree) {
  switch (agree(own_progress())) {
    case Progress::kRunning:
      return false;
    case Progress::kLate:
      throw CheckpointError("cannot save {}: it is not done in time: does the storage answer?",
                            files_->path().string());
    case Progress::kFailed:
      if (stage_ == Stage::kRemoval) throw_error();
      begin(Stage::kRemoval);
      return false;
    case Progress::kDone:
      if (stage_ == Stage::kPublishing) return true;
      begin(stage_ == Stage::kFolder ? Stage::kShards : Stage::kPublishing);
  }
  return false;
}

void CheckpointSave::wait(const Agree& agree) {
  while (!poll(agree)) {
    if (work_.valid()) work_.wait_for(kAskingInterval);
  }
}

void CheckpointSave::throw_error() const {
  if (!error_) {
    throw CheckpointError("cannot save {}: another rank failed to write its part, see its message",
                          files_->path().string());
  }
  try {
    std::rethrow_exception(error_);
  } catch (const DataError& from_storage) {
    throw CheckpointError("{}", from_storage.what());
  } catch (const fs::filesystem_error& from_library) {
    throw CheckpointError("cannot save {}: {}", files_->path().string(), from_library.code().message());
  }
}

}  // namespace flowshard::checkpoint
