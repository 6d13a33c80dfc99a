// The validation loss: the flow-matching loss of the current weights on samples and noise that are always the
// same, at eight fixed times. Sample i of the validation shards gets t = (i mod 8 + 1/2) / 8, or (i mod 8) /
// 8 as in MLPerf's text-to-image benchmark, and noise of its number; the loss is the mean over the eight
// times of the mean over the samples of a time. So it is the same number for every number of ranks, strategy
// and batch size. It changes nothing of training. Used by one thread.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "distributed/environment.h"
#include "distributed/process_group.h"
#include "fsdp/fully_shard.h"
#include "training/batch_source.h"
#include "training/objective.h"
#include "training/train_config.h"

namespace flowshard::training {

struct ValidationLoss {
  double mean = 0;                   // of the eight
  std::array<double, 8> at_times{};  // mean over the samples of a time
};

class Validation {
 public:
  /// Opens validation.shards, if there are any. Throws ConfigError if they are not there or hold fewer
  /// samples than validation.samples or 8; as dataset::BatchLoader besides.
  Validation(const TrainConfig& config, const distributed::Environment& environment);

  /// Whether the loss is wanted after this step.
  bool is_due(int64_t step) const;

  /// Measures it; every rank calls it, and gets the same numbers. Every sample counts once: a rank that has
  /// fewer than the others runs samples that do not count. Returns nothing, soon, if any rank is told to stop
  /// (stop_request.h): the job is to end then.
  std::optional<ValidationLoss> run(Objective& objective, fsdp::ShardedState& state,
                                    distributed::ProcessGroup& ranks, at::Device device);

 private:
  TrainConfig config_;
  std::unique_ptr<BatchSource> batches_;
  int64_t num_samples_ = 0;
};

}  // namespace flowshard::training
