// The owner of a POSIX file descriptor, and the text of a system error.
#pragma once

#include <unistd.h>

#include <string>
#include <system_error>
#include <utility>

namespace flowshard::storage {

class FileDescriptor {
 public:
  explicit FileDescriptor(int value = -1) : value_(value) {}
  ~FileDescriptor() {
    if (valid()) ::close(value_);
  }
  FileDescriptor(FileDescriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }

  bool valid() const { return value_ >= 0; }
  int get() const { return value_; }

  /// Closes now. Returns 0 or the error number: some file systems report a failed write only here.
  int close();

 private:
  int value_;
};

inline std::string error_text(int error_number) { return std::system_category().message(error_number); }

}  // namespace flowshard::storage
