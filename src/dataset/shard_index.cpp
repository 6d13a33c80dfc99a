#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "core/error.h"
#include "core/file_descriptor.h"
#include "dataset/webdataset.h"

namespace flowshard::dataset {
namespace {

constexpr std::array<std::string_view, 4> kImageExtensions{"png", "jpg", "jpeg", "webp"};
constexpr std::string_view kCaptionExtension = "txt";
constexpr int64_t kBlockBytes = 512;
constexpr size_t kReadBytes = 16 << 10;  // pictures are skipped by seeking: what is read of them is wasted

struct MemberName {
  std::string key;
  std::string extension;  // lower case
};

// None for names without an extension and for the members "__..." that hold no sample.
std::optional<MemberName> split_name(const std::string& name) {
  const size_t slash = name.rfind('/');
  const size_t base = slash == std::string::npos ? 0 : slash + 1;
  const size_t dot = name.find('.', base);
  if (dot == std::string::npos || dot == base || name.compare(base, 2, "__") == 0) return std::nullopt;
  MemberName result{.key = name.substr(0, dot), .extension = name.substr(dot + 1)};
  std::transform(result.extension.begin(), result.extension.end(), result.extension.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

// Members that belong together.
struct Group {
  std::string key;
  std::optional<FileRange> image;
  std::optional<FileRange> caption;
  const char* problem = nullptr;
};

class Grouper {
 public:
  void add(const MemberName& name, const FileRange& range) {
    const auto [known, is_new] = groups_by_key_.try_emplace(name.key, groups_.size());
    if (is_new) groups_.push_back({.key = name.key, .image = {}, .caption = {}});
    Group& group = groups_[known->second];
    if (known->second != last_ && !is_new) group.problem = "its files do not follow each other";
    last_ = known->second;
    if (name.extension == kCaptionExtension) {
      if (group.caption) group.problem = "it has two captions";
      group.caption = range;
    } else if (std::find(kImageExtensions.begin(), kImageExtensions.end(), name.extension) !=
               kImageExtensions.end()) {
      if (group.image) group.problem = "it has two pictures";
      group.image = range;
    }
  }

  void move_to(ShardIndex& index, const std::string& shard) {
    for (Group& group : groups_) {
      if (group.problem == nullptr && !group.image)
        group.problem = "it has no picture (png, jpg, jpeg or webp)";
      if (group.problem == nullptr && !group.caption) group.problem = "it has no caption (txt)";
      if (group.problem == nullptr) {
        index.samples.push_back(
            {.key = std::move(group.key), .image = *group.image, .caption = *group.caption});
      } else {
        ++index.num_bad_samples;
        index.problems.push_back(fmt::format("{}:{}: {}: left out", shard, group.key, group.problem));
      }
    }
  }

 private:
  std::vector<Group> groups_;
  std::unordered_map<std::string, size_t> groups_by_key_;
  size_t last_ = 0;
};

// Walks over the members of a tar.
class TarReader {
 public:
  explicit TarReader(const std::filesystem::path& path)
      : file_(open(path.c_str(), O_RDONLY | O_CLOEXEC)), archive_(archive_read_new(), archive_read_free) {
    struct stat status {};
    if (!file_.valid() || fstat(file_.get(), &status) != 0) {
      throw ConfigError("cannot open the shard {}: {}", path.string(), error_text(errno));
    }
    size_bytes_ = status.st_size;
    archive_read_support_format_tar(archive_.get());
    if (size_bytes_ == 0) {
      damage_ = "the file is empty";
    } else if (archive_read_open_fd(archive_.get(), file_.get(), kReadBytes) != ARCHIVE_OK) {
      damage_ = archive_error_string(archive_.get());
    }
  }

  struct Member {
    std::string name;
    bool is_file = false;
    FileRange range;
  };

  // The next member that is wholly there; none at the end and at damage, which `damage` then describes.
  std::optional<Member> next() {
    if (damage_) return std::nullopt;
    archive_entry* entry = nullptr;
    const int result = archive_read_next_header(archive_.get(), &entry);
    if (result == ARCHIVE_EOF) {
      // libarchive takes a file that is cut between two members for a whole one.
      const int64_t end = (sound_bytes_ + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
      if (end < size_bytes_) return std::nullopt;
      sound_bytes_ = size_bytes_;
      return damaged("it has no end mark: was it cut?");
    }
    if (result != ARCHIVE_OK && result != ARCHIVE_WARN) return damaged(archive_error_string(archive_.get()));
    // Names that the locale of this process cannot show are kept as UTF-8.
    const char* name = archive_entry_pathname_utf8(entry);
    if (name == nullptr) name = archive_entry_pathname(entry);
    if (name == nullptr) return damaged("a member has an unreadable name");
    Member member{.name = name, .is_file = archive_entry_filetype(entry) == AE_IFREG, .range = {}};
    member.range.offset = archive_filter_bytes(archive_.get(), 0);
    member.range.size_bytes = archive_entry_size(entry);
    if (member.range.size_bytes > size_bytes_ - member.range.offset) {
      return damaged(fmt::format("the file is cut inside {}", member.name));
    }
    sound_bytes_ = member.range.offset + member.range.size_bytes;
    return member;
  }

  const std::optional<std::string>& damage() const { return damage_; }
  int64_t size_bytes() const { return size_bytes_; }
  int64_t lost_bytes() const { return damage_ ? size_bytes_ - sound_bytes_ : 0; }

 private:
  std::nullopt_t damaged(std::string what) {
    damage_ = std::move(what);
    return std::nullopt;
  }

  FileDescriptor file_;
  std::unique_ptr<archive, int (*)(archive*)> archive_;
  int64_t size_bytes_ = 0;
  int64_t sound_bytes_ = 0;
  std::optional<std::string> damage_;
};

}  // namespace

ShardIndex index_shard(const std::filesystem::path& path) {
  ShardIndex index;
  TarReader tar(path);
  Grouper groups;
  while (const auto member = tar.next()) {
    if (!member->is_file) continue;
    if (const auto name = split_name(member->name)) groups.add(*name, member->range);
  }
  const std::string shard = path.filename().string();
  index.size_bytes = tar.size_bytes();
  index.lost_bytes = tar.lost_bytes();
  index.damaged = tar.damage().has_value();
  if (index.damaged) {
    const std::string lost =
        index.lost_bytes > 0 ? fmt::format(": its last {} bytes are lost", index.lost_bytes) : "";
    index.problems.push_back(fmt::format("{}: damaged ({}){}", shard, *tar.damage(), lost));
  }
  groups.move_to(index, shard);
  if (index.samples.empty() && !index.damaged)
    index.problems.push_back(fmt::format("{}: holds no sample", shard));
  return index;
}

}  // namespace flowshard::dataset
