// The errors of the whole program. Each type is named by what its handler does (docs/errors.md); the message
// is one line that says what is wrong, where, and what to do. Any thread may throw; threads carry errors out
// by std::exception_ptr.
#pragma once

#include <fmt/format.h>

#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace flowshard {

/// Exit codes of the program. A graceful stop by signal n is 128 + n.
enum class ExitCode : int {
  kOk = 0,
  kInternal = 1,
  kUsage = 2,
  kCommunication = 3,
  kData = 4,
  kCheckpoint = 5,
};

/// Root of all errors that have a handler.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  virtual ExitCode exit_code() const = 0;
};

/// The user changes the command line, the configuration or the model folder. Thrown before work starts.
class ConfigError : public Error {
 public:
  template <typename... Args>
  explicit ConfigError(fmt::format_string<Args...> format, Args&&... args)
      : Error(fmt::format(format, std::forward<Args>(args)...)) {}
  ExitCode exit_code() const override { return ExitCode::kUsage; }
};

/// A sample or an output file is unusable: skip and count it, stop above the limit.
class DataError : public Error {
 public:
  template <typename... Args>
  explicit DataError(fmt::format_string<Args...> format, Args&&... args)
      : Error(fmt::format(format, std::forward<Args>(args)...)) {}
  ExitCode exit_code() const override { return ExitCode::kData; }
};

/// A collective, a rendezvous or a peer failed: this rank ends, the launcher restarts the job.
class CommError : public Error {
 public:
  template <typename... Args>
  explicit CommError(fmt::format_string<Args...> format, Args&&... args)
      : Error(fmt::format(format, std::forward<Args>(args)...)) {}
  ExitCode exit_code() const override { return ExitCode::kCommunication; }
};

/// A weights file or checkpoint is damaged or cannot be written: use the one before it.
class CheckpointError : public Error {
 public:
  template <typename... Args>
  explicit CheckpointError(fmt::format_string<Args...> format, Args&&... args)
      : Error(fmt::format(format, std::forward<Args>(args)...)) {}
  ExitCode exit_code() const override { return ExitCode::kCheckpoint; }
};

/// A bug of ours. Caught only where a thread or a rank ends; no input of a user may reach it.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// Throws InternalError with file and line when an invariant of ours does not hold.
void check(bool condition, std::string_view message,
           std::source_location where = std::source_location::current());

/// What `error` means as an exit code: that of its type, or kInternal for anything that is not an Error.
ExitCode exit_code_of(const std::exception& error);

/// The message without what follows its first line: LibTorch appends a backtrace to its own.
std::string_view first_line(std::string_view message);

}  // namespace flowshard
