// AdamW (https://arxiv.org/abs/1711.05101) and weight averaging on the ranks' shards. One thread at a time;
// every rank makes the same calls.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "fsdp/fully_shard.h"
#include "training/train_config.h"

namespace flowshard::training {

class Optimizer {
 public:
  /// The moments start at zero and, if averages are kept, those at the parameters.
  Optimizer(const fsdp::ShardedState& state, const TrainConfig::Optimizer& config, double ema_decay);

  /// One AdamW step on every master shard with its gradient times `grad_scale`, then one of the average.
  void step(double lr, double grad_scale);

  /// Counts a step that changes nothing: its gradient was not finite.
  void skip_step() { ++step_count_, ++skipped_steps_; }

  /// All steps of the run, skipped ones included: where the schedule stands.
  int64_t step_count() const { return step_count_; }
  int64_t skipped_steps() const { return skipped_steps_; }
  void restore_counts(int64_t step_count, int64_t skipped_steps) {
    step_count_ = step_count;
    skipped_steps_ = skipped_steps;
  }

  /// fp32, one tensor a group, like ParamGroup::master_shard(); `ema` is empty if no averages are kept.
  std::vector<at::Tensor> exp_avg, exp_avg_sq, ema;

 private:
  const fsdp::ShardedState& state_;
  TrainConfig::Optimizer config_;
  double ema_decay_;
  int64_t step_count_ = 0, skipped_steps_ = 0;
};

}  // namespace flowshard::training
