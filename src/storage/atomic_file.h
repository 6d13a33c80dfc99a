// Files that appear whole or not at all: written under a temporary name beside the final one, synced,
// renamed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

#include "core/file_descriptor.h"

struct XXH3_state_s;

namespace flowshard::storage {

/// What was written: to be compared with what is read later.
struct FileDigest {
  int64_t size_bytes = 0;
  uint64_t checksum = 0;  // XXH3, 64 bits

  bool operator==(const FileDigest&) const = default;
};

/// The digest of bytes in memory.
FileDigest digest_of(std::span<const std::byte> bytes);

/// One writer. Throws DataError: no space, no permission, a folder in the way. Unless publish() has returned,
/// the destructor removes the temporary file and whatever was at `path` before is untouched.
class AtomicFile {
 public:
  /// Creates the temporary file, PATH.tmp-PROCESS-NUMBER. The folder must exist, on a file system that says
  /// it has room for `expected_bytes`.
  explicit AtomicFile(const std::filesystem::path& path, int64_t expected_bytes = 0);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }

  /// Syncs the bytes, gives the file its name and syncs the folder. Returns what was written.
  FileDigest publish();

 private:
  struct FreeHash {
    void operator()(XXH3_state_s* state) const;
  };
  [[noreturn]] void fail(int error_number) const;

  std::filesystem::path path_;
  std::filesystem::path temporary_path_;
  FileDescriptor file_;
  std::unique_ptr<XXH3_state_s, FreeHash> hash_;
  int64_t size_bytes_ = 0;
};

/// A whole file at once.
FileDigest write_file(const std::filesystem::path& path, std::string_view text);

/// Makes the names in `folder` (created, renamed, removed files) survive a power cut. Throws DataError.
void sync_folder(const std::filesystem::path& folder);

}  // namespace flowshard::storage
