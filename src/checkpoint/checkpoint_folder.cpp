#include "checkpoint/checkpoint_folder.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <string_view>

#include "checkpoint/training_state.h"
#include "core/error.h"
#include "storage/atomic_file.h"

namespace flowshard::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kDeletedSuffix = ".deleted";

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw CheckpointError("cannot list {}: {}", folder.string(), error.message());
  }
  return names;
}

void remove_folder(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) throw CheckpointError("cannot remove {}: {}", path.string(), error.message());
}

void rename_folder(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) throw CheckpointError("cannot rename {} to {}: {}", from.string(), to.string(), error.message());
}

fs::path with_suffix(const fs::path& path, std::string_view suffix) {
  return path.parent_path() / (path.filename().string() + std::string(suffix));
}

// Unpublishes by one rename, so that no half-removed folder looks complete.
void remove_published(const fs::path& path) {
  const fs::path deleted = with_suffix(path, kDeletedSuffix);
  rename_folder(path, deleted);
  remove_folder(deleted);
}

bool belongs_to_run(const fs::path& checkpoint, const std::string& run_id) {
  try {
    return read_training_state(checkpoint / kStateName).run_id == run_id;
  } catch (const CheckpointError&) {
    return false;  // damaged or not ours to judge: it stays
  }
}

}  // namespace

std::string step_folder_name(int64_t step) { return fmt::format("{}{:08}", kPrefix, step); }

std::optional<int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return {};
  int64_t step = -1;
  const char* const end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + kPrefix.size(), end, step);
  if (parsed.ec != std::errc() || step < 0 || name != step_folder_name(step)) return {};
  return step;
}

std::string shard_file_name(int64_t shard, int64_t num_shards) {
  return fmt::format("rank-{:05}-of-{:05}.safetensors", shard, num_shards);
}

fs::path temporary_path_of(const fs::path& checkpoint) { return with_suffix(checkpoint, kTemporarySuffix); }

std::vector<PublishedCheckpoint> published_checkpoints(const fs::path& folder) {
  std::vector<PublishedCheckpoint> found;
  for (const std::string& name : names_in(folder)) {
    const auto step = step_of(name);
    std::error_code error;  // one that cannot be looked into is not passed over in silence
    if (step && (fs::exists(folder / name / kManifestName, error) || error)) {
      found.push_back({*step, folder / name});
    }
  }
  std::ranges::sort(found, std::greater(), &PublishedCheckpoint::step);
  return found;
}

std::optional<fs::path> latest_checkpoint(const fs::path& folder) {
  const auto found = published_checkpoints(folder);
  return found.empty() ? std::nullopt : std::optional(found.front().path);
}

void remove_leftovers(const fs::path& folder) {
  for (const std::string& name : names_in(folder)) {
    for (const std::string_view suffix : {std::string_view(kTemporarySuffix), kDeletedSuffix}) {
      const std::string_view view(name);
      if (view.ends_with(suffix) && step_of(view.substr(0, view.size() - suffix.size()))) {
        remove_folder(folder / name);
      }
    }
  }
}

void publish_checkpoint(const fs::path& path) {
  const fs::path temporary = temporary_path_of(path);
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    rename_folder(temporary, path);
  } else if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) {
    remove_folder(temporary);  // the old one by now
  } else if (errno == EINVAL || errno == ENOSYS) {
    // A file system without exchange: for a moment there is neither, but each folder stays whole.
    const fs::path deleted = with_suffix(path, kDeletedSuffix);
    rename_folder(path, deleted);
    rename_folder(temporary, path);
    remove_folder(deleted);
  } else {
    throw CheckpointError("cannot replace {}: {}", path.string(), error_text(errno));
  }
  storage::sync_folder(path.parent_path());
}

void remove_old_checkpoints(const fs::path& folder, const std::string& run_id, int64_t newest_step,
                            int64_t keep) {
  int64_t kept = 0;
  for (const auto& [step, path] : published_checkpoints(folder)) {
    if (step > newest_step || !belongs_to_run(path, run_id)) continue;
    if (++kept > keep) remove_published(path);
  }
}

}  // namespace flowshard::checkpoint
