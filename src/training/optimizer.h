// AdamW (https://arxiv.org/abs/1711.05101) and weight averaging on the ranks' fp32 shards, and the global
// gradient norm. One thread at a time; every rank makes the same calls.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "distributed/process_group.h"
#include "fsdp/fully_shard.h"
#include "training/train_config.h"

namespace flowshard::training {

/// The Euclidean norm of the whole gradient, the same number on every rank. Shards are counted once each;
/// replicated gradients (no_shard) once in all.
double global_grad_norm(const fsdp::ShardedState& state, distributed::ProcessGroup& ranks);

class Optimizer {
 public:
  /// The moments start at zero and, if averages are kept, those at the parameters.
  Optimizer(const fsdp::ShardedState& state, const TrainConfig::Optimizer& config, double ema_decay);

  /// One AdamW step on every master shard with its gradient times `grad_scale`, then one of the average.
  void step(double lr, double grad_scale);

  int64_t step_count() const { return step_count_; }
  void set_step_count(int64_t count) { step_count_ = count; }

  /// fp32, one tensor a group, like ParamGroup::master_shard(); `ema` is empty if no averages are kept.
  std::vector<at::Tensor> exp_avg, exp_avg_sq, ema;

 private:
  const fsdp::ShardedState& state_;
  TrainConfig::Optimizer config_;
  double ema_decay_;
  int64_t step_count_ = 0;
};

}  // namespace flowshard::training
