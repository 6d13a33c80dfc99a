#include "storage/writable_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "core/error.h"
#include "storage/atomic_file.h"

namespace flowshard::storage {

void require_writable_folder(const std::filesystem::path& folder, std::string_view setting) {
  std::filesystem::path nearest = folder.empty() ? "." : folder.lexically_normal();
  std::error_code error;
  while (std::filesystem::symlink_status(nearest, error).type() == std::filesystem::file_type::not_found) {
    nearest = nearest.has_relative_path() && nearest.has_parent_path() ? nearest.parent_path() : ".";
  }
  if (!std::filesystem::is_directory(nearest, error)) {
    throw ConfigError("{}: {} cannot be a folder: {} is {}", setting, folder.string(), nearest.string(),
                      error ? error.message() : "a file");
  }
  if (::faccessat(AT_FDCWD, nearest.c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
    throw ConfigError("{}: nothing can be written to {}: {} (write to a folder you may write to)", setting,
                      nearest.string(), error_text(errno));
  }
}

void require_writable_file(const std::filesystem::path& file, std::string_view setting) {
  require_writable_folder(file.parent_path(), setting);
  std::error_code error;
  if (std::filesystem::is_directory(file, error)) {
    throw ConfigError("{}: {} is a folder: name a file", setting, file.string());
  }
  if (std::filesystem::exists(file, error) && !std::filesystem::is_regular_file(file, error)) {
    throw ConfigError("{}: {} is a device or a pipe: name a file", setting, file.string());
  }
  if (::faccessat(AT_FDCWD, file.c_str(), W_OK, AT_EACCESS) != 0 && errno != ENOENT) {
    throw ConfigError("{}: {} cannot be written: {}", setting, file.string(), error_text(errno));
  }
}

}  // namespace flowshard::storage
