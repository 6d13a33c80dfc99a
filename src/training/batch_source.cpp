#include "training/batch_source.h"

#include <fmt/format.h>

#include "core/standard_streams.h"

namespace flowshard::training {

dataset::DatasetOptions dataset_options(const TrainConfig& config,
                                        const distributed::Environment& environment) {
  return {.shards = config.data.shards,
          .height = static_cast<int>(config.data.height),
          .width = static_cast<int>(config.data.width),
          .batch_size = static_cast<int>(config.train.batch_size),
          .rank = environment.rank,
          .world_size = environment.world_size,
          .seed = static_cast<uint64_t>(config.run.seed),
          .num_threads = static_cast<int>(config.data.num_threads),
          .max_bad_fraction = config.data.max_bad_fraction};
}

BatchSource::BatchSource(dataset::DatasetOptions options) : loader_(std::move(options)) {
  warn_of_bad_samples();
}

dataset::Batch BatchSource::next() {
  dataset::Batch batch = loader_.next();
  warn_of_bad_samples();
  return batch;
}

void BatchSource::warn_of_bad_samples() {
  const dataset::DatasetStats stats = loader_.stats();
  if (stats.problems.size() == num_problems_named_) return;
  std::string text;
  for (; num_problems_named_ < stats.problems.size(); ++num_problems_named_) {
    text += fmt::format("flowshard train: warning: {}\n", stats.problems[num_problems_named_]);
  }
  text += fmt::format("flowshard train: warning: {} bad samples of {} so far", stats.num_bad_samples,
                      stats.num_samples);
  print_line(text);
}

}  // namespace flowshard::training
