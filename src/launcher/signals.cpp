#include "launcher/signals.h"

#include <sys/signalfd.h>

#include "core/error.h"

namespace flowshard::launcher {

SignalReader::SignalReader() {
  sigset_t taken;
  sigemptyset(&taken);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD}) {
    sigaddset(&taken, signal);
  }
  sigprocmask(SIG_BLOCK, &taken, &previous_mask_);
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore,
            &previous_pipe_action_);  // a closed output is no reason to leave the ranks alone
  fd_ = FileDescriptor(signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
  check(fd_.valid(), "signalfd opens");
}

SignalReader::~SignalReader() {
  while (next()) {
  }
  sigaction(SIGPIPE, &previous_pipe_action_, nullptr);
  sigprocmask(SIG_SETMASK, &previous_mask_, nullptr);
}

std::optional<int> SignalReader::next() {
  signalfd_siginfo info;
  if (read(fd_.get(), &info, sizeof(info)) != sizeof(info)) {
    return std::nullopt;
  }
  return static_cast<int>(info.ssi_signo);
}

}  // namespace flowshard::launcher
