#include "dataset/dataset.h"

#include <unicode/ustring.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <future>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "core/bounded_queue.h"
#include "core/error.h"
#include "dataset/sample_order.h"
#include "dataset/shard_list.h"
#include "dataset/webdataset.h"
#include "image/image.h"
#include "image/resize.h"

namespace flowshard::dataset {
namespace {

constexpr size_t kMaxProblems = 20;
constexpr int64_t kMaxSubstitutes = 100;

struct Sample {
  int64_t id = 0;
  int64_t epoch = 0;
  std::string caption;
  std::vector<uint8_t> pixels;
};

void check_options(const DatasetOptions& options) {
  const auto require = [](bool holds, const char* name, int64_t value, const char* rule) {
    if (!holds) throw ConfigError("the data set's {} is {}: give {}", name, value, rule);
  };
  require(options.height > 0, "height", options.height, "at least 1");
  require(options.width > 0, "width", options.width, "at least 1");
  require(options.batch_size > 0, "batch size", options.batch_size, "at least 1");
  require(options.num_threads > 0, "number of threads", options.num_threads, "at least 1");
  require(options.prefetch_batches > 0, "number of prefetched batches", options.prefetch_batches,
          "at least 1");
  require(options.start_position >= 0, "start position", options.start_position, "0 or more");
  require(options.max_samples >= 0, "number of samples", options.max_samples, "0 or more");
  require(options.timeout.count() > 0, "timeout in seconds", options.timeout.count(), "at least 1");
  if (!(options.max_bad_fraction >= 0 && options.max_bad_fraction <= 1)) {
    throw ConfigError("the data set's max_bad_fraction is {}: give 0 to 1", options.max_bad_fraction);
  }
  check(options.world_size > 0 && options.rank >= 0 && options.rank < options.world_size,
        "a rank lies in the world");
}

std::vector<std::filesystem::path> find_shards(const std::vector<std::string>& patterns) {
  std::vector<std::filesystem::path> shards = expand_shards(patterns);
  require_shards(shards);
  return shards;
}

bool is_utf8(const std::string& text) {
  int32_t length = 0;
  UErrorCode status = U_ZERO_ERROR;
  u_strFromUTF8(nullptr, 0, &length, text.data(), static_cast<int32_t>(text.size()), &status);
  return status != U_INVALID_CHAR_FOUND;
}

}  // namespace

class BatchLoader::Impl {
 public:
  explicit Impl(DatasetOptions options)
      : options_((check_options(options), std::move(options))),
        data_(find_shards(options_.shards), options_.num_threads, options_.max_bad_fraction),
        fingerprint_(data_.fingerprint()),
        order_(num_samples(), options_.seed),
        position_(options_.start_position),
        requested_(options_.start_position),
        tasks_(static_cast<size_t>(options_.batch_size) * options_.prefetch_batches) {
    request_batches();
    for (int i = 0; i < options_.num_threads; ++i) workers_.emplace_back([this] { work(); });
  }

  ~Impl() {
    tasks_.close();
    stopping_ = true;
    for (std::thread& worker : workers_) worker.join();
  }

  Batch next() {
    const auto deadline = std::chrono::steady_clock::now() + options_.timeout;
    Batch batch;
    for (int i = 0; i < options_.batch_size; ++i) {
      if (samples_.front().wait_until(deadline) != std::future_status::ready) {
        throw DataError("no batch within {} s: is the storage of {} slow or gone?", options_.timeout.count(),
                        data_.name(place_of(position_).sample));
      }
      append(batch, samples_.front().get());
      samples_.pop_front();
    }
    position_ += global_batch_size();
    request_batches();
    return batch;
  }

  int64_t position() const { return position_; }

  DatasetStats stats() const {
    DatasetStats stats{.num_shards = data_.num_shards(),
                       .num_damaged_shards = data_.num_damaged_shards(),
                       .num_samples = num_samples(),
                       .num_bad_samples = data_.num_bad_samples(),
                       .problems = data_.problems(),
                       .fingerprint = fingerprint_};
    const std::lock_guard lock(mutex_);
    stats.num_bad_samples += static_cast<int64_t>(unsound_.size());
    stats.problems.insert(stats.problems.end(), problems_.begin(), problems_.end());
    stats.problems.resize(std::min(stats.problems.size(), kMaxProblems));
    return stats;
  }

 private:
  int64_t global_batch_size() const { return int64_t{options_.world_size} * options_.batch_size; }

  int64_t num_samples() const {
    return options_.max_samples > 0 ? std::min(options_.max_samples, data_.size()) : data_.size();
  }

  SampleOrder::Place place_of(int64_t position) const {
    if (options_.shuffle) return order_.at(position);
    const int64_t batch = global_batch_size();
    const int64_t epoch_size = (num_samples() + batch - 1) / batch * batch;
    return {.epoch = position / epoch_size, .sample = position % epoch_size % num_samples()};
  }

  // Keeps prefetch_batches requested. The queue has room for all of them.
  void request_batches() {
    while (samples_.size() < static_cast<size_t>(options_.batch_size) * options_.prefetch_batches) {
      for (int i = 0; i < options_.batch_size; ++i) {
        const int64_t position = requested_ + int64_t{options_.rank} * options_.batch_size + i;
        std::packaged_task<Sample()> task([this, position] { return load(position); });
        samples_.push_back(task.get_future());
        const auto now = std::chrono::steady_clock::now();
        check(tasks_.push(std::move(task), now) == QueueResult::kDone, "the queue holds all requests");
      }
      requested_ += global_batch_size();
    }
  }

  void work() {
    while (!stopping_) {
      std::packaged_task<Sample()> task;
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
      const QueueResult result = tasks_.pop(task, deadline);
      if (result == QueueResult::kClosed) return;
      if (result == QueueResult::kDone && !stopping_) task();  // an exception goes to the future
    }
  }

  // The sample at a position, or its substitute.
  Sample load(int64_t position) {
    const SampleOrder::Place place = place_of(position);
    for (int64_t step = 0; step < std::min(data_.size(), kMaxSubstitutes); ++step) {
      const int64_t id = (place.sample + step) % data_.size();
      if (is_unsound(id)) continue;
      try {
        return load_sample(id, place.epoch);
      } catch (const DataError& error) {
        note_unsound(id, error.what());
      }
    }
    throw_above_limit();
    throw DataError("{}: neither it nor any of the {} samples after it is sound", data_.name(place.sample),
                    std::min(data_.size(), kMaxSubstitutes) - 1);
  }

  Sample load_sample(int64_t id, int64_t epoch) const {
    Sample sample{.id = id, .epoch = epoch, .caption = data_.read_caption(id), .pixels = {}};
    if (!is_utf8(sample.caption)) throw DataError("{}: the caption is not valid UTF-8", data_.name(id));
    const image::Image image = image::decode(data_.read_image(id), data_.name(id));
    sample.pixels = image::crop_and_resize(image, options_.width, options_.height).pixels;
    return sample;
  }

  bool is_unsound(int64_t id) const {
    const std::lock_guard lock(mutex_);
    return unsound_.contains(id);
  }

  void note_unsound(int64_t id, const std::string& problem) {
    const std::lock_guard lock(mutex_);
    if (!unsound_.insert(id).second) return;
    if (problems_.size() < kMaxProblems) problems_.push_back(problem + ": replaced by the next sample");
    const int64_t bad = data_.num_bad_samples() + static_cast<int64_t>(unsound_.size());
    const int64_t all = data_.num_bad_samples() + data_.size();
    if (static_cast<double>(bad) > options_.max_bad_fraction * static_cast<double>(all)) {
      above_limit_ = fmt::format("{} of {} samples are bad, above the limit of {:g} %; the last: {}", bad,
                                 all, options_.max_bad_fraction * 100, problem);
    }
  }

  void append(Batch& batch, Sample sample) {
    throw_above_limit();
    batch.keys.push_back(data_.name(sample.id));
    batch.sample_ids.push_back(sample.id);
    batch.epochs.push_back(sample.epoch);
    batch.captions.push_back(std::move(sample.caption));
    batch.pixels.insert(batch.pixels.end(), sample.pixels.begin(), sample.pixels.end());
  }

  void throw_above_limit() {
    const std::lock_guard lock(mutex_);
    if (above_limit_) throw DataError("{}", *above_limit_);
  }

  const DatasetOptions options_;
  const WebDataset data_;
  const uint64_t fingerprint_;
  const SampleOrder order_;
  int64_t position_;
  int64_t requested_;  // the position behind all batches that were asked of the workers
  std::deque<std::future<Sample>> samples_;
  BoundedQueue<std::packaged_task<Sample()>> tasks_;

  mutable std::mutex mutex_;
  std::set<int64_t> unsound_;               // guarded by mutex_
  std::vector<std::string> problems_;       // guarded by mutex_
  std::optional<std::string> above_limit_;  // guarded by mutex_

  std::atomic<bool> stopping_ = false;
  std::vector<std::thread> workers_;  // last: the threads use all of the above
};

BatchLoader::BatchLoader(DatasetOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
BatchLoader::~BatchLoader() = default;
Batch BatchLoader::next() { return impl_->next(); }
int64_t BatchLoader::position() const { return impl_->position(); }
DatasetStats BatchLoader::stats() const { return impl_->stats(); }

}  // namespace flowshard::dataset
