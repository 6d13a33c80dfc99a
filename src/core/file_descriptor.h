// A POSIX file descriptor with one owner, and the text of a system error.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

namespace flowshard {

class FileDescriptor {
 public:
  explicit FileDescriptor(int value = -1) : value_(value) {}
  ~FileDescriptor() { close(); }
  FileDescriptor(FileDescriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }

  bool valid() const { return value_ >= 0; }
  int get() const { return value_; }

  /// Closes now, if it is open. Returns 0 or the error number: some file systems report a failed write only
  /// here.
  int close() {
    if (!valid()) return 0;
    return ::close(std::exchange(value_, -1)) == 0 ? 0 : errno;
  }

 private:
  int value_;
};

inline std::string error_text(int error_number) { return std::system_category().message(error_number); }

}  // namespace flowshard
