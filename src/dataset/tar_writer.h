// Writes one tar file whose bytes depend on its members alone (no times, owners or modes of the machine), and
// publishes it whole. Used by one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "storage/atomic_file.h"

struct archive;

namespace flowshard::dataset {

class TarWriter {
 public:
  /// Throws DataError, as do the others, if the file cannot be written. Without finish() nothing is left of
  /// it.
  explicit TarWriter(const std::filesystem::path& path);
  ~TarWriter();
  TarWriter(const TarWriter&) = delete;
  TarWriter& operator=(const TarWriter&) = delete;

  void add(const std::string& name, std::span<const uint8_t> bytes);
  void add(const std::string& name, const std::string& text);

  /// Ends the archive and puts it at the path, where there was the old file or none until now.
  void finish();

 private:
  struct Output;
  void require(int64_t result, const char* doing);

  std::filesystem::path path_;
  std::unique_ptr<Output> output_;
  std::unique_ptr<archive, int (*)(archive*)> archive_;
};

}  // namespace flowshard::dataset
