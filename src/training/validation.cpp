#include "training/validation.h"

#include <algorithm>

#include "core/error.h"
#include "dataset/shard_list.h"
#include "training/stop_request.h"

namespace flowshard::training {
namespace {

constexpr int64_t kNumTimes = std::tuple_size_v<decltype(ValidationLoss::at_times)>;

}  // namespace

Validation::Validation(const TrainConfig& config, const distributed::Environment& environment)
    : config_(config) {
  if (config.validation.shards.empty()) return;
  dataset::require_shards(dataset::expand_shards(config.validation.shards), "validation.shards");
  dataset::DatasetOptions options = dataset_options(config, environment);
  options.shards = config.validation.shards;
  options.shuffle = false;
  options.max_samples = config.validation.samples;
  batches_ = std::make_unique<BatchSource>(std::move(options));
  num_samples_ = batches_->stats().num_samples;
  const int64_t wanted = std::max(config.validation.samples, kNumTimes);
  if (num_samples_ < wanted) {
    throw ConfigError("validation.shards hold {} samples: {} are needed", num_samples_,
                      config.validation.samples > 0 ? fmt::format("validation.samples = {}", wanted)
                                                    : fmt::format("at least {}", wanted));
  }
}

bool Validation::is_due(int64_t step) const {
  return batches_ && (step % config_.validation.every_steps == 0 || step == config_.train.steps);
}

std::optional<ValidationLoss> Validation::run(Objective& objective, fsdp::ShardedState& state,
                                              distributed::ProcessGroup& ranks, at::Device device) {
  const int64_t size = config_.train.batch_size;
  const double offset = config_.validation.timesteps == ValidationTimesteps::kMidpoints ? 0.5 : 0;
  at::Tensor totals = at::zeros({kNumTimes}, at::kDouble);
  for (int64_t begin = 0; begin < num_samples_; begin += size * ranks.world_size()) {
    const int64_t first = begin + size * ranks.rank();
    const at::Tensor times = at::arange(first, first + size).remainder(kNumTimes);  // numbers of times
    const at::Tensor t = ((times + offset) / kNumTimes).to(at::kFloat);
    const at::Tensor losses = objective.validation_losses(batches_->next(), first, t, state).cpu();
    const int64_t count = std::clamp<int64_t>(num_samples_ - first, 0, size);
    // The last element: whether a rank is told to stop.
    at::Tensor sums = at::zeros({kNumTimes + 1}, at::kDouble);
    sums.index_add_(0, times.narrow(0, 0, count), losses.narrow(0, 0, count).to(at::kDouble));
    sums[kNumTimes] = StopRequest::signal() != 0 ? 1 : 0;
    sums = sums.to(device);
    ranks.all_reduce_sum(sums)->wait();
    sums = sums.cpu();
    if (sums[kNumTimes].item<double>() > 0) return std::nullopt;
    totals += sums.narrow(0, 0, kNumTimes);
  }
  ValidationLoss result;
  for (int64_t k = 0; k < kNumTimes; ++k) {
    const int64_t count = (num_samples_ - k + kNumTimes - 1) / kNumTimes;
    result.at_times[static_cast<size_t>(k)] = totals[k].item<double>() / static_cast<double>(count);
    result.mean += result.at_times[static_cast<size_t>(k)] / kNumTimes;
  }
  return result;
}

}  // namespace flowshard::training
