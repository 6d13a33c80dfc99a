#include "dataset/tar_writer.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "core/error.h"

namespace flowshard::dataset {

TarWriter::TarWriter(const std::filesystem::path& path)
    : path_(path),
      temporary_(fmt::format("{}.tmp-{}", path.string(), getpid())),
      archive_(archive_write_new(), archive_write_free) {
  file_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file_ < 0) throw DataError("cannot write {}: {}", temporary_.string(), std::strerror(errno));
  archive_write_set_format_pax_restricted(archive_.get());  // ustar, with pax records for long names only
  archive_write_add_filter_none(archive_.get());
  require(archive_write_open_fd(archive_.get(), file_), "open");
}

TarWriter::~TarWriter() {
  if (file_ < 0) return;
  archive_write_fail(archive_.get());
  close(file_);
  unlink(temporary_.c_str());
}

void TarWriter::require(int result, const char* doing) {
  if (result == ARCHIVE_OK) return;
  throw DataError("cannot {} {}: {}", doing, temporary_.string(), archive_error_string(archive_.get()));
}

void TarWriter::add(const std::string& name, std::span<const uint8_t> bytes) {
  const std::unique_ptr<archive_entry, void (*)(archive_entry*)> entry(archive_entry_new(),
                                                                       archive_entry_free);
  archive_entry_set_pathname(entry.get(), name.c_str());
  archive_entry_set_size(entry.get(), static_cast<la_int64_t>(bytes.size()));
  archive_entry_set_filetype(entry.get(), AE_IFREG);
  archive_entry_set_perm(entry.get(), 0644);
  archive_entry_set_mtime(entry.get(), 0, 0);
  require(archive_write_header(archive_.get(), entry.get()), "write");
  const la_ssize_t written = archive_write_data(archive_.get(), bytes.data(), bytes.size());
  if (written != static_cast<la_ssize_t>(bytes.size())) require(ARCHIVE_FATAL, "write");
}

void TarWriter::add(const std::string& name, const std::string& text) {
  add(name, std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
}

void TarWriter::finish() {
  require(archive_write_close(archive_.get()), "write");
  if (fsync(file_) != 0) throw DataError("cannot sync {}: {}", temporary_.string(), std::strerror(errno));
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    throw DataError("cannot publish {}: {}", path_.string(), std::strerror(errno));
  }
  close(file_);
  file_ = -1;
}

}  // namespace flowshard::dataset
