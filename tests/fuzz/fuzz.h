// What the fuzzers share. Any input gives a result or an Error of the one right type, whose message is one
// line; everything else (another exception, a sanitizer's finding, a hang) ends the program and is a finding.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

namespace flowshard::fuzz {

template <typename ErrorType, typename Read>
void expect_result_or_error(Read read) {
  try {
    read();
  } catch (const ErrorType& error) {
    if (std::string_view(error.what()).find_first_of("\n\r") == std::string_view::npos) return;
    std::fprintf(stderr, "a message of several lines: %s\n", error.what());
    std::abort();
  }
}

inline void require(bool condition, const char* message) {
  if (condition) return;
  std::fprintf(stderr, "not so: %s\n", message);
  std::abort();
}

/// A file that is never on a disk.
class MemoryFile {
 public:
  MemoryFile() : descriptor_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    require(descriptor_ >= 0, "a memory file can be made");
  }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  void set(const uint8_t* data, size_t size) {
    require(::ftruncate(descriptor_, 0) == 0 &&
                ::pwrite(descriptor_, data, size, 0) == static_cast<ssize_t>(size),
            "a memory file can be written");
  }
  std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

}  // namespace flowshard::fuzz
