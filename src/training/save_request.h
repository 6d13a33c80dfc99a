// Requests for a checkpoint between the regular ones: SIGUSR1, or a file that a user makes (OUTPUT_DIR/save).
// Training goes on after it. One at a time; one thread.
#pragma once

#include <filesystem>

namespace flowshard::training {

class SaveRequest {
 public:
  /// From now on SIGUSR1 is noted, and a file at `file` too; an empty path: this rank looks for none.
  explicit SaveRequest(std::filesystem::path file);
  /// SIGUSR1 ends the process again.
  ~SaveRequest();
  SaveRequest(const SaveRequest&) = delete;
  SaveRequest& operator=(const SaveRequest&) = delete;

  /// Whether a request has come since the last call. A file counts once, until done().
  bool take();

  /// A checkpoint is safe: removes the file if it was taken, so that its absence tells the user. If that
  /// cannot be, warns on stderr and looks for it no more.
  void done();

 private:
  std::filesystem::path file_;
  bool file_taken_ = false;
};

}  // namespace flowshard::training
