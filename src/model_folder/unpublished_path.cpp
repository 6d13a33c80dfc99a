#include "model_folder/unpublished_path.h"

#include <unistd.h>

#include "core/error.h"
#include "storage/atomic_file.h"

namespace flowshard {

namespace fs = std::filesystem;

UnpublishedPath::UnpublishedPath(const fs::path& path)
    : path_(path.has_filename() ? path : path.parent_path()),
      temporary_(fmt::format("{}.tmp-{}", path_.string(), ::getpid())) {}

UnpublishedPath::~UnpublishedPath() {
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
}

void UnpublishedPath::make_folder() const {
  if (fs::exists(path_)) throw ConfigError("{}: it exists already: name a new folder", path_.string());
  std::error_code error;
  if (!fs::create_directory(temporary_, error)) {
    throw ConfigError("{}: the folder cannot be made: {}", path_.string(), error.message());
  }
}

void UnpublishedPath::publish() const {
  try {
    if (fs::is_directory(temporary_)) storage::sync_folder(temporary_);
    std::error_code error;
    fs::rename(temporary_, path_, error);
    if (error) throw CheckpointError("cannot write {}: {}", path_.string(), error.message());
    storage::sync_folder(fs::absolute(path_).parent_path());
  } catch (const DataError& from_storage) {
    throw CheckpointError("{}", from_storage.what());
  }
}

}  // namespace flowshard
