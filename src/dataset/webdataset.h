// WebDataset shards: uncompressed tar files in which the members KEY.EXT that follow each other with one KEY
// are a sample (https://github.com/webdataset/webdataset). KEY is the name up to the first dot after the last
// slash. Of each sample we use the picture (png, jpg, jpeg or webp) and the caption (txt).
//
// The shards are indexed once; then samples are read at random from any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace flowshard::dataset {

struct FileRange {
  int64_t offset = 0;
  int64_t size_bytes = 0;
};

struct SampleEntry {
  std::string key;
  FileRange image;
  FileRange caption;
};

/// What one tar holds. Samples without a picture or a caption, with two of either, or whose files do not
/// follow each other are left out; behind damage nothing is read. `problems` names each of these, one line
/// each.
struct ShardIndex {
  std::vector<SampleEntry> samples;  // in the order of the tar
  std::vector<std::string> problems;
  int64_t num_bad_samples = 0;
  int64_t size_bytes = 0;
  int64_t lost_bytes = 0;  // behind damage
  bool damaged = false;    // cut, empty, a bad header, or no tar
};

/// Throws ConfigError if the file cannot be opened.
ShardIndex index_shard(const std::filesystem::path& path);

class WebDataset {
 public:
  /// Indexes all shards. Throws ConfigError if they hold no sample; DataError if more than `max_bad_fraction`
  /// of the samples, or of the bytes, are bad or lost.
  WebDataset(std::vector<std::filesystem::path> shards, int num_threads, double max_bad_fraction);

  int64_t size() const { return starts_.back(); }

  /// "shapes-000003.tar:000003141"
  std::string name(int64_t sample) const;

  /// Both throw DataError, which names the sample, if it cannot be read, or for a picture above 1 GiB or a
  /// caption above 1 MiB.
  std::vector<uint8_t> read_image(int64_t sample) const;
  std::string read_caption(int64_t sample) const;

  int64_t num_shards() const { return static_cast<int64_t>(shards_.size()); }
  int64_t num_damaged_shards() const;
  int64_t num_bad_samples() const;
  std::vector<std::string> problems() const;

  /// A hash of the names and sizes of all samples in order.
  uint64_t fingerprint() const;

 private:
  size_t shard_of(int64_t sample) const;
  const SampleEntry& entry(int64_t sample) const;
  void limit_size(int64_t sample, const FileRange& range, int64_t limit, const char* what) const;
  void read(int64_t sample, const FileRange& range, void* target) const;

  std::vector<std::filesystem::path> shards_;
  std::vector<ShardIndex> indexes_;
  std::vector<int64_t> starts_;  // [shards + 1]: the number of each shard's first sample
};

}  // namespace flowshard::dataset
