#include "dataset/tar_writer.h"

#include <archive.h>
#include <archive_entry.h>
#include <fmt/format.h>

#include <exception>

#include "core/error.h"

namespace flowshard::dataset {

// The file, and why writing to it failed: libarchive cannot carry an exception.
struct TarWriter::Output {
  explicit Output(const std::filesystem::path& path) : file(path) {}

  static la_ssize_t write(archive*, void* self, const void* bytes, size_t size) {
    auto* output = static_cast<Output*>(self);
    try {
      output->file.write(std::span(static_cast<const std::byte*>(bytes), size));
    } catch (...) {
      output->error = std::current_exception();
      return -1;
    }
    return static_cast<la_ssize_t>(size);
  }

  storage::AtomicFile file;
  std::exception_ptr error;
};

TarWriter::TarWriter(const std::filesystem::path& path)
    : path_(path),
      output_(std::make_unique<Output>(path)),
      archive_(archive_write_new(), archive_write_free) {
  archive_write_set_format_pax_restricted(archive_.get());  // ustar, with pax records for long names only
  archive_write_add_filter_none(archive_.get());
  require(archive_write_open(archive_.get(), output_.get(), nullptr, &Output::write, nullptr), "open");
}

TarWriter::~TarWriter() { archive_write_fail(archive_.get()); }  // after finish() this does nothing

void TarWriter::require(int64_t result, const char* doing) {
  if (output_->error) std::rethrow_exception(output_->error);
  if (result < 0) {
    throw DataError("cannot {} {}: {}", doing, path_.string(), archive_error_string(archive_.get()));
  }
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
  require(archive_write_data(archive_.get(), bytes.data(), bytes.size()), "write");
}

void TarWriter::add(const std::string& name, const std::string& text) {
  add(name, std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
}

void TarWriter::finish() {
  require(archive_write_close(archive_.get()), "write");
  output_->file.publish();
}

}  // namespace flowshard::dataset
