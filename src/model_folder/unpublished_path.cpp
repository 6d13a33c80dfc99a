#include "model_folder/unpublished_path.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "core/error.h"
#include "storage/atomic_file.h"

namespace flowshard {

namespace fs = std::filesystem;

namespace {

fs::path without_slash(const fs::path& path) { return path.has_filename() ? path : path.parent_path(); }

}  // namespace

void require_free_path(const fs::path& path, bool replaces_file) {
  const fs::path clean = without_slash(path);
  std::error_code ignored;
  const fs::file_type found = fs::symlink_status(clean, ignored).type();
  if (found == fs::file_type::not_found) {
    const fs::path parent = fs::absolute(clean).parent_path();
    if (clean.empty() || !fs::is_directory(parent, ignored)) {
      throw ConfigError("cannot write '{}': there is no folder {}: make it first", path.string(),
                        parent.string());
    }
  } else if (fs::exists(clean, ignored) && !fs::is_regular_file(clean, ignored)) {
    throw ConfigError("{}: it exists already: name another place", path.string());
  } else if (!replaces_file) {
    throw ConfigError("{}: it exists already: name another place, or let a file replace it with --force",
                      path.string());
  }
}

UnpublishedPath::UnpublishedPath(const fs::path& path, bool replaces_file)
    : path_(without_slash(path)),
      temporary_(fmt::format("{}.tmp-{}", path_.string(), ::getpid())),
      replaces_file_(replaces_file) {
  require_free_path(path, replaces_file);
}

UnpublishedPath::~UnpublishedPath() {
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
}

void UnpublishedPath::make_folder() const {
  std::error_code error;
  if (!fs::create_directory(temporary_, error)) {
    throw ConfigError("{}: the folder cannot be made: {}", path_.string(), error.message());
  }
}

void UnpublishedPath::publish() const {
  try {
    if (fs::is_directory(temporary_)) storage::sync_folder(temporary_);
    give_name();
    storage::sync_folder(fs::absolute(path_).parent_path());
  } catch (const DataError& from_storage) {
    throw CheckpointError("{}", from_storage.what());
  }
}

void UnpublishedPath::give_name() const {
  const unsigned flags = replaces_file_ ? 0 : RENAME_NOREPLACE;
  int error = ::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), flags) == 0 ? 0 : errno;
  if (error == EEXIST) {
    throw ConfigError("{}: somebody else has made it meanwhile: name another place", path_.string());
  }
  if (error == EINVAL || error == ENOSYS) {  // a file system that cannot look and rename at once
    require_free_path(path_, replaces_file_);
    error = ::rename(temporary_.c_str(), path_.c_str()) == 0 ? 0 : errno;
  }
  if (error != 0) throw CheckpointError("cannot write {}: {}", path_.string(), error_text(error));
}

}  // namespace flowshard
