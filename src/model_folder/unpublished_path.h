// A file or folder that is written under another name beside its own: it appears whole or not at all, and
// takes the place of nothing unless a file may be replaced.
#pragma once

#include <filesystem>

namespace flowshard {

/// Throws ConfigError if there is something at `path`, unless that is a file and `replaces_file`, or if there
/// is no folder for it.
void require_free_path(const std::filesystem::path& path, bool replaces_file);

class UnpublishedPath {
 public:
  /// Throws what require_free_path() throws.
  explicit UnpublishedPath(const std::filesystem::path& path, bool replaces_file = false);
  /// Removes what was not published.
  ~UnpublishedPath();
  UnpublishedPath(const UnpublishedPath&) = delete;
  UnpublishedPath& operator=(const UnpublishedPath&) = delete;

  /// PATH.tmp-PROCESS, where it is written.
  const std::filesystem::path& temporary() const { return temporary_; }

  /// Makes it a folder. Throws ConfigError if it cannot be made.
  void make_folder() const;

  /// Gives it its name. Throws ConfigError if somebody else has taken that meanwhile, CheckpointError if it
  /// cannot be written.
  void publish() const;

 private:
  void give_name() const;

  std::filesystem::path path_, temporary_;
  bool replaces_file_;
};

}  // namespace flowshard
