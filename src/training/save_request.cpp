#include "training/save_request.h"

#include <sys/stat.h>

#include <csignal>
#include <utility>

#include "core/standard_streams.h"

namespace flowshard::training {
namespace {

volatile std::sig_atomic_t received = 0;  // a handler can reach nothing else

void note(int) { received = 1; }

void handle(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGUSR1, &action, nullptr);
}

}  // namespace

SaveRequest::SaveRequest(std::filesystem::path file) : file_(std::move(file)) {
  received = 0;
  handle(note);
}

SaveRequest::~SaveRequest() { handle(SIG_IGN); }

std::optional<SaveRequest::Stamp> SaveRequest::stamp() const {
  struct stat status {};
  if (file_.empty() || ::lstat(file_.c_str(), &status) != 0) return {};
  return Stamp{status.st_ino, status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
}

bool SaveRequest::take() {
  // What comes after the flag is read and before it is cleared is answered by the same checkpoint.
  const bool by_signal = received != 0;
  received = 0;
  const std::optional<Stamp> found = stamp();
  if (!found) is_stuck_ = false;
  const bool by_file = found && !is_stuck_ && !taken_;
  if (by_file) taken_ = found;
  return by_signal || by_file;
}

void SaveRequest::done() {
  if (!taken_) return;
  const bool is_same = stamp() == taken_;
  taken_.reset();
  if (!is_same) return;
  std::error_code error;
  std::filesystem::remove(file_, error);
  if (!error) return;
  print_line(
      "flowshard train: warning: {} cannot be removed and asks for no checkpoint until you remove it: {}",
      file_.string(), error.message());
  is_stuck_ = true;
}

}  // namespace flowshard::training
