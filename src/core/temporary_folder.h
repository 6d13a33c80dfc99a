// For tests: a fresh folder that is removed at the end.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "core/error.h"

namespace flowshard {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "flowshard-XXXXXX").string();
    check(::mkdtemp(pattern.data()) != nullptr, "a temporary folder");
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace flowshard
