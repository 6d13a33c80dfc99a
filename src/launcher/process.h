// One child process, with its output in our hands. It dies with the launcher, whatever happens to that.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "core/file_descriptor.h"

namespace flowshard::launcher {

struct ExitStatus {
  int code = 0;    // 128 + n if it died by signal n
  int signal = 0;  // 0 if it ended by itself

  std::string words() const;  // "exited with code 3", "was killed by signal 9 (KILL)"
};

struct ProcessOptions {
  std::string program;                   // a path, or a name to find in PATH
  std::vector<std::string> command;      // the name that it sees, then its arguments
  std::vector<std::string> environment;  // NAME=VALUE
  bool terminal_out = false;             // give it a terminal as output, so that it draws progress bars
  bool terminal_err = false;
  int inherited_fd = -1;  // stays open in the child, under the same number
};

class Process {
 public:
  /// Throws ConfigError that names the program if it cannot be executed.
  explicit Process(const ProcessOptions& options);
  /// Kills the process, if it still runs. One that even this does not end within seconds is left to the
  /// system.
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  int out() const { return out_.get(); }  // to read from, not blocking
  int err() const { return err_.get(); }

  /// Its end, once it has come; nothing while it runs.
  std::optional<ExitStatus> poll();
  /// To the process and its children.
  void send(int signal);

 private:
  pid_t pid_ = -1;
  std::optional<ExitStatus> status_;
  FileDescriptor out_, err_;
};

}  // namespace flowshard::launcher
