// The folder that holds the checkpoints of a run: names, publishing, removal (docs/checkpoint_format.md). One
// process at a time changes it; any may read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace flowshard::checkpoint {

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kLayoutName = "layout.json";
inline constexpr const char* kStateName = "state.json";
inline constexpr const char* kTemporarySuffix = ".tmp";

std::string step_folder_name(int64_t step);                      // "step-00000200"
std::optional<int64_t> step_of(std::string_view folder_name);    // nothing for any other name
std::string shard_file_name(int64_t shard, int64_t num_shards);  // "rank-00000-of-00002.safetensors"

/// Where the checkpoint `path` is written before it is published.
std::filesystem::path temporary_path_of(const std::filesystem::path& path);

struct PublishedCheckpoint {
  int64_t step;
  std::filesystem::path path;
};

/// The complete checkpoints in `folder`, newest first; none if there is no such folder. Their contents are
/// not looked at: TrainingCheckpoint::open says whether one is sound.
std::vector<PublishedCheckpoint> published_checkpoints(const std::filesystem::path& folder);

/// The newest of them.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& folder);

/// Removes what a process that died left: STEP.tmp and STEP.deleted. Throws CheckpointError.
void remove_leftovers(const std::filesystem::path& folder);

/// Gives the finished folder STEP.tmp the name `path`. A checkpoint that is already there is replaced.
void publish_checkpoint(const std::filesystem::path& path);

/// Of the checkpoints of the run `run_id` up to `newest_step` keeps the newest `keep` and removes the others.
void remove_old_checkpoints(const std::filesystem::path& folder, const std::string& run_id,
                            int64_t newest_step, int64_t keep);

}  // namespace flowshard::checkpoint
