// A file or folder that is written under another name beside its own: it appears whole or not at all.
#pragma once

#include <filesystem>

namespace flowshard {

class UnpublishedPath {
 public:
  explicit UnpublishedPath(const std::filesystem::path& path);
  /// Removes what was not published.
  ~UnpublishedPath();
  UnpublishedPath(const UnpublishedPath&) = delete;
  UnpublishedPath& operator=(const UnpublishedPath&) = delete;

  /// PATH.tmp-PROCESS, where it is written.
  const std::filesystem::path& temporary() const { return temporary_; }

  /// Makes it a folder. Throws ConfigError if there is something at the path already, or it cannot be made.
  void make_folder() const;

  /// Gives it its name. Throws CheckpointError.
  void publish() const;

 private:
  std::filesystem::path path_, temporary_;
};

}  // namespace flowshard
