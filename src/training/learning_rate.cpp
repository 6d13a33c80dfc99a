#include "training/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace flowshard::training {

double learning_rate(const TrainConfig& config, int64_t step) {
  const TrainConfig::Schedule& schedule = config.schedule;
  const double at = static_cast<double>(step);
  const double warmup = static_cast<double>(schedule.warmup_steps);
  if (at < warmup) return config.optimizer.lr * at / warmup;
  if (schedule.decay == Decay::kConstant) return config.optimizer.lr;

  const double last = static_cast<double>(config.train.steps);
  const double start = std::max(warmup, schedule.decay_start_fraction * last);
  const double done = last > start ? std::clamp((at - start) / (last - start), 0.0, 1.0) : 1.0;
  const double left =
      schedule.decay == Decay::kLinear ? 1 - done : (1 + std::cos(std::numbers::pi * done)) / 2;
  return config.optimizer.lr * (schedule.final_fraction + (1 - schedule.final_fraction) * left);
}

}  // namespace flowshard::training
