// Signals as data: while a SignalReader lives, they are read from a descriptor and not delivered.
#pragma once

#include <signal.h>

#include <optional>

#include "core/file_descriptor.h"

namespace flowshard::launcher {

class SignalReader {
 public:
  /// Takes the signals that end or steer a job (INT, TERM, HUP, QUIT, USR1, USR2), and CHLD.
  SignalReader();
  ~SignalReader();
  SignalReader(const SignalReader&) = delete;
  SignalReader& operator=(const SignalReader&) = delete;

  int fd() const { return fd_.get(); }
  std::optional<int> next();  // nothing: none is waiting

 private:
  sigset_t previous_mask_;
  struct sigaction previous_pipe_action_;
  FileDescriptor fd_;
};

}  // namespace flowshard::launcher
