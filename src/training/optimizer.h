// AdamW (https://arxiv.org/abs/1711.05101) and weight averaging on the ranks' shards, with moments in fp32 or
// in 8 bits (kernels/adamw.h), on the device or in host memory. One thread at a time; every rank makes the
// same calls.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/fully_shard.h"
#include "fsdp/host_memory.h"
#include "fsdp/staged_update.h"
#include "training/train_config.h"

namespace flowshard::training {

class Optimizer {
 public:
  /// The moments start at zero and, if averages are kept, those at the parameters. Moments and averages lie
  /// in `host_memory` if there is one. Bf16 masters are rounded by draws from run.seed.
  Optimizer(const fsdp::ShardedState& state, const TrainConfig& config, at::Device device,
            fsdp::HostMemory* host_memory = nullptr);

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

  bool keeps_average() const { return config_.ema.decay > 0; }

  /// What a checkpoint keeps of group `index` beside the master: "exp_avg", "exp_avg_sq" and perhaps "ema",
  /// each [shard_numel], on any device. 8-bit moments are decoded to fp32; restore() encodes them to the same
  /// codes.
  using NamedStates = std::vector<std::pair<std::string, at::Tensor>>;
  NamedStates states(size_t index) const;
  void restore(size_t index, const std::string& name, const at::Tensor& values);

 private:
  struct GroupState {
    at::Tensor exp_avg, exp_avg_sq;              // fp32 or codes
    at::Tensor exp_avg_scale, exp_avg_sq_scale;  // of codes
    at::Tensor ema;                              // like the master
    int64_t first_element = 0;                   // of the shard in the whole model
  };
  GroupState make_state(const fsdp::ParamGroup& group, fsdp::HostMemory* host_memory) const;

  const fsdp::ShardedState& state_;
  TrainConfig config_;
  at::Device device_;
  std::vector<GroupState> groups_;
  fsdp::StagedUpdate staged_update_;
  int64_t step_count_ = 0, skipped_steps_ = 0;
};

}  // namespace flowshard::training
