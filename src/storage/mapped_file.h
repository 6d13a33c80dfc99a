// A whole file mapped into memory for reading. May be read from any thread.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace flowshard::storage {

class MappedFile {
 public:
  /// Throws DataError if `path` is no regular file or cannot be read.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  /// Writing to these bytes ends the program. They stay the same if the name is given to another file, but
  /// not if somebody else changes this file in place.
  std::span<const std::byte> bytes() const { return bytes_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace flowshard::storage
