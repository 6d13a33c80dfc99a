#include "storage/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "core/error.h"
#include "core/file_descriptor.h"

namespace flowshard::storage {

MappedFile::MappedFile(const std::filesystem::path& path) {
  // Without O_NONBLOCK, opening a named pipe would wait for its writer.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) throw DataError("cannot read {}: {}", path.string(), error_text(errno));
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0)
    throw DataError("cannot read {}: {}", path.string(), error_text(errno));
  if (!S_ISREG(status.st_mode)) throw DataError("cannot read {}: it is not a regular file", path.string());
  if (status.st_size == 0) return;  // an empty map is an error for the kernel
  const auto size = static_cast<size_t>(status.st_size);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) throw DataError("cannot map {}: {}", path.string(), error_text(errno));
  bytes_ = {static_cast<const std::byte*>(address), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace flowshard::storage
