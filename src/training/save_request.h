// Requests for a checkpoint between the regular ones: SIGUSR1, or a file that a user makes (OUTPUT_DIR/save).
// Training goes on after it. One at a time; one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace flowshard::training {

class SaveRequest {
 public:
  /// From now on SIGUSR1 is noted, and a file at `file` too; an empty path: this rank looks for none.
  explicit SaveRequest(std::filesystem::path file);
  /// SIGUSR1 is ignored from now on: a late one must not make a failure of a run that is over.
  ~SaveRequest();
  SaveRequest(const SaveRequest&) = delete;
  SaveRequest& operator=(const SaveRequest&) = delete;

  /// Whether a request has come since the last call. What is at the path (a file, a folder, a link) counts
  /// once, until done().
  bool take();

  /// A checkpoint is safe: removes the file if it was taken, so that its absence tells the user. A file that
  /// was touched meanwhile stays and asks again. If one cannot be removed, warns on stderr and does not look
  /// at it until somebody else has removed it.
  void done();

 private:
  /// Which file, and when it was touched.
  struct Stamp {
    uint64_t inode;
    int64_t seconds, nanoseconds;
    bool operator==(const Stamp&) const = default;
  };
  std::optional<Stamp> stamp() const;

  std::filesystem::path file_;
  std::optional<Stamp> taken_;
  bool is_stuck_ = false;  // could not be removed and is still there
};

}  // namespace flowshard::training
