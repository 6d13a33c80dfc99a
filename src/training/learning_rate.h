// The learning rate of each optimizer step: warm-up, plateau, decay. A function of the step alone, so that it
// does not depend on ranks, accumulation or how often a run was resumed.
#pragma once

#include <cstdint>

#include "training/train_config.h"

namespace flowshard::training {

/// The rate of optimizer step `step` (1 is the first). Rises linearly to optimizer.lr at step warmup_steps,
/// decays from decay_start_fraction of the steps on, and is optimizer.lr * final_fraction at the last step.
double learning_rate(const TrainConfig& config, int64_t step);

}  // namespace flowshard::training
