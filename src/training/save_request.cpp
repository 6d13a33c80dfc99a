#include "training/save_request.h"

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

SaveRequest::~SaveRequest() { handle(SIG_DFL); }

bool SaveRequest::take() {
  // What comes after the flag is read and before it is cleared is answered by the same checkpoint.
  const bool by_signal = received != 0;
  received = 0;
  std::error_code ignored;
  const bool by_file = !file_.empty() && !file_taken_ && std::filesystem::exists(file_, ignored);
  file_taken_ |= by_file;
  return by_signal || by_file;
}

void SaveRequest::done() {
  if (!file_taken_) return;
  file_taken_ = false;
  std::error_code error;
  std::filesystem::remove(file_, error);
  if (!error) return;
  print_line("flowshard train: warning: {} cannot be removed and is not looked at any more: {}",
             file_.string(), error.message());
  file_.clear();
}

}  // namespace flowshard::training
