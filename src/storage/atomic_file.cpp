#include "storage/atomic_file.h"

#include <fcntl.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "core/error.h"

namespace flowshard::storage {
namespace {

// The kernel writes at most 2 GiB at once anyway; smaller pieces keep the hash and the copy in the cache.
constexpr size_t kPieceBytes = size_t{1} << 20;

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

const char* advice(int error_number) {
  switch (error_number) {
    case ENOSPC:
      return " (free some space or write elsewhere)";
    case EDQUOT:
      return " (free some of your quota or write elsewhere)";
    case EFBIG:
      return " (raise the limit on file sizes: ulimit -f)";
    case EACCES:
    case EPERM:
    case EROFS:
      return " (write to a folder you may write to)";
    default:
      return "";
  }
}

// Whoever finds out only by writing has spent minutes on a large file.
void require_room(const std::filesystem::path& path, int64_t bytes) {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(folder_of(path), error);
  if (error || space.capacity == 0) return;  // a file system that cannot say
  if (static_cast<uintmax_t>(bytes) > space.available) {
    throw DataError("cannot write {}: it takes {} bytes, but {} are free{}", path.string(), bytes,
                    space.available, advice(ENOSPC));
  }
}

}  // namespace

FileDigest digest_of(std::span<const std::byte> bytes) {
  return {static_cast<int64_t>(bytes.size()), XXH3_64bits(bytes.data(), bytes.size())};
}

void AtomicFile::FreeHash::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

AtomicFile::AtomicFile(const std::filesystem::path& path, int64_t expected_bytes)
    : path_(path), hash_(XXH3_createState()) {
  require_room(path, expected_bytes);
  check(hash_ != nullptr, "no memory for a hash state");
  XXH3_64bits_reset(hash_.get());
  static std::atomic<int> counter = 0;
  int error = EEXIST;
  // Another host may use the same process number on a shared file system: then the next number is tried.
  for (int attempt = 0; error == EEXIST && attempt < 1000; ++attempt) {
    temporary_path_ = path.string() + fmt::format(".tmp-{}-{}", ::getpid(), counter++);
    file_ = FileDescriptor(::open(temporary_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    error = file_.valid() ? 0 : errno;
  }
  if (error != 0) {
    temporary_path_.clear();
    fail(error);
  }
}

AtomicFile::~AtomicFile() {
  if (!temporary_path_.empty()) ::unlink(temporary_path_.c_str());
}

void AtomicFile::fail(int error_number) const {
  throw DataError("cannot write {}: {}{}", path_.string(), error_text(error_number), advice(error_number));
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), kPieceBytes));
    const ssize_t written = ::write(file_.get(), piece.data(), piece.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      fail(errno);
    }
    XXH3_64bits_update(hash_.get(), piece.data(), static_cast<size_t>(written));
    size_bytes_ += written;
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

FileDigest AtomicFile::publish() {
  check(file_.valid(), "a file is published once");
  if (::fsync(file_.get()) != 0) fail(errno);
  if (const int error = file_.close(); error != 0) fail(error);
  if (::rename(temporary_path_.c_str(), path_.c_str()) != 0) fail(errno);
  temporary_path_.clear();
  sync_folder(folder_of(path_));
  return {size_bytes_, XXH3_64bits_digest(hash_.get())};
}

FileDigest write_file(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  return file.publish();
}

void sync_folder(const std::filesystem::path& folder) {
  const FileDescriptor file(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some network file systems cannot sync a folder and say EINVAL: their renames are durable or nothing
  // helps.
  if (!file.valid() || (::fsync(file.get()) != 0 && errno != EINVAL)) {
    throw DataError("cannot sync the folder {}: {}", folder.string(), error_text(errno));
  }
}

}  // namespace flowshard::storage
