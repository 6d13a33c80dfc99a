#include "dataset/webdataset.h"

#include <fcntl.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <future>
#include <memory>

#include "core/error.h"
#include "core/file_descriptor.h"

namespace flowshard::dataset {
namespace {

constexpr int64_t kMaxImageBytes = int64_t{1} << 30;
constexpr int64_t kMaxCaptionBytes = int64_t{1} << 20;

std::vector<ShardIndex> index_shards(const std::vector<std::filesystem::path>& shards, int num_threads) {
  std::vector<ShardIndex> indexes(shards.size());
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < shards.size(); i = next++) indexes[i] = index_shard(shards[i]);
  };
  std::vector<std::future<void>> workers;
  for (int i = 0; i < num_threads; ++i) workers.push_back(std::async(std::launch::async, work));
  for (std::future<void>& worker : workers) worker.get();
  return indexes;
}

void limit_share(int64_t bad, int64_t all, double max_bad_fraction, const char* what,
                 const std::vector<std::string>& problems) {
  if (static_cast<double>(bad) <= max_bad_fraction * static_cast<double>(all)) return;
  throw DataError("{} of {} {} of the data set are bad, above the limit of {:g} %; the first: {}", bad, all,
                  what, max_bad_fraction * 100, problems.at(0));
}

}  // namespace

WebDataset::WebDataset(std::vector<std::filesystem::path> shards, int num_threads, double max_bad_fraction)
    : shards_(std::move(shards)), indexes_(index_shards(shards_, num_threads)), starts_{0} {
  int64_t size_bytes = 0;
  int64_t lost_bytes = 0;
  for (const ShardIndex& index : indexes_) {
    starts_.push_back(starts_.back() + static_cast<int64_t>(index.samples.size()));
    size_bytes += index.size_bytes;
    lost_bytes += index.lost_bytes;
  }
  limit_share(lost_bytes, size_bytes, max_bad_fraction, "bytes", problems());
  limit_share(num_bad_samples(), size() + num_bad_samples(), max_bad_fraction, "samples", problems());
  if (size() == 0) {
    throw ConfigError(
        "the {} shards hold no sample, which is KEY.txt and KEY.png, jpg, jpeg or webp; the first: {}",
        shards_.size(), problems().at(0));
  }
}

size_t WebDataset::shard_of(int64_t sample) const {
  check(sample >= 0 && sample < size(), "a sample that the data set does not hold");
  return static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), sample) - starts_.begin()) - 1;
}

const SampleEntry& WebDataset::entry(int64_t sample) const {
  const size_t shard = shard_of(sample);
  return indexes_[shard].samples[sample - starts_[shard]];
}

std::string WebDataset::name(int64_t sample) const {
  return fmt::format("{}:{}", shards_[shard_of(sample)].filename().string(), entry(sample).key);
}

void WebDataset::read(int64_t sample, const FileRange& range, void* target) const {
  const std::filesystem::path& path = shards_[shard_of(sample)];
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) throw DataError("{}: {}", name(sample), error_text(errno));
  int64_t done = 0;
  while (done < range.size_bytes) {
    const ssize_t count = pread(file.get(), static_cast<char*>(target) + done,
                                static_cast<size_t>(range.size_bytes - done), range.offset + done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw DataError("{}: {}", name(sample), error_text(errno));
    if (count == 0) throw DataError("{}: the shard has become shorter since it was indexed", name(sample));
    done += count;
  }
}

void WebDataset::limit_size(int64_t sample, const FileRange& range, int64_t limit, const char* what) const {
  if (range.size_bytes <= limit) return;
  throw DataError("{}: a {} of {} bytes is above the limit of {}", name(sample), what, range.size_bytes,
                  limit);
}

std::vector<uint8_t> WebDataset::read_image(int64_t sample) const {
  const FileRange& range = entry(sample).image;
  limit_size(sample, range, kMaxImageBytes, "picture");
  std::vector<uint8_t> bytes(range.size_bytes);
  read(sample, range, bytes.data());
  return bytes;
}

std::string WebDataset::read_caption(int64_t sample) const {
  const FileRange& range = entry(sample).caption;
  limit_size(sample, range, kMaxCaptionBytes, "caption");
  std::string text(range.size_bytes, '\0');
  read(sample, range, text.data());
  return text;
}

int64_t WebDataset::num_damaged_shards() const {
  return std::count_if(indexes_.begin(), indexes_.end(),
                       [](const ShardIndex& index) { return index.damaged; });
}

int64_t WebDataset::num_bad_samples() const {
  int64_t count = 0;
  for (const ShardIndex& index : indexes_) count += index.num_bad_samples;
  return count;
}

std::vector<std::string> WebDataset::problems() const {
  std::vector<std::string> all;
  for (const ShardIndex& index : indexes_)
    all.insert(all.end(), index.problems.begin(), index.problems.end());
  return all;
}

uint64_t WebDataset::fingerprint() const {
  const std::unique_ptr<XXH64_state_t, XXH_errorcode (*)(XXH64_state_t*)> state(XXH64_createState(),
                                                                                XXH64_freeState);
  XXH64_reset(state.get(), 0);
  for (size_t shard = 0; shard < shards_.size(); ++shard) {
    const std::string shard_name = shards_[shard].filename().string();
    XXH64_update(state.get(), shard_name.c_str(), shard_name.size() + 1);  // with its end
    for (const SampleEntry& sample : indexes_[shard].samples) {
      XXH64_update(state.get(), sample.key.c_str(), sample.key.size() + 1);
      const int64_t sizes[] = {sample.image.size_bytes, sample.caption.size_bytes};
      XXH64_update(state.get(), sizes, sizeof(sizes));
    }
  }
  return XXH64_digest(state.get());
}

}  // namespace flowshard::dataset
