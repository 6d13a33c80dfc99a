// The precision of a run, from its configuration.
#pragma once

#include <ATen/ATen.h>

#include "fsdp/policy.h"
#include "training/train_config.h"

namespace flowshard::training {

struct RunPrecision {
  fsdp::MixedPrecisionPolicy shards;
  at::ScalarType buffer_dtype = at::kFloat;  // of the frozen encoders and what they make

  /// fp16 has so few exponents that small gradients need a loss scale.
  bool needs_loss_scale() const {
    return shards.param_dtype == at::kHalf || shards.reduce_dtype == at::kHalf;
  }
};

RunPrecision precision_of(const TrainConfig& config);

}  // namespace flowshard::training
