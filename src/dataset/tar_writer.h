// Writes one tar file whose bytes depend on its members alone (no times, owners or modes of the machine), and
// publishes it whole. Used by one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

struct archive;

namespace flowshard::dataset {

class TarWriter {
 public:
  /// Writes beside `path`, under a temporary name. Throws DataError if it cannot.
  explicit TarWriter(const std::filesystem::path& path);
  /// Without finish(): removes the temporary file.
  ~TarWriter();
  TarWriter(const TarWriter&) = delete;
  TarWriter& operator=(const TarWriter&) = delete;

  void add(const std::string& name, std::span<const uint8_t> bytes);
  void add(const std::string& name, const std::string& text);

  /// Ends the archive, syncs it and renames it to `path`, where there was the old file or none until now.
  void finish();

 private:
  void require(int result, const char* doing);

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int file_ = -1;
  std::unique_ptr<archive, int (*)(archive*)> archive_;
};

}  // namespace flowshard::dataset
