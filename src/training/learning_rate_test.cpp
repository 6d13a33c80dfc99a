#include "training/learning_rate.h"

#include <gtest/gtest.h>

namespace flowshard::training {
namespace {

TrainConfig config(int64_t steps, TrainConfig::Schedule schedule) {
  TrainConfig config;
  config.train.steps = steps;
  config.optimizer.lr = 2.0;
  config.schedule = schedule;
  return config;
}

TEST(LearningRate, WarmsUpLinearlyAndStays) {
  const auto c = config(10, {.warmup_steps = 4, .decay = Decay::kConstant});
  EXPECT_DOUBLE_EQ(learning_rate(c, 1), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(c, 4), 2.0);
  EXPECT_DOUBLE_EQ(learning_rate(c, 10), 2.0);
}

TEST(LearningRate, DecaysLinearlyFromTheGivenFractionToItsFinalValue) {
  const auto c = config(
      100, {.warmup_steps = 10, .decay = Decay::kLinear, .decay_start_fraction = 0.6, .final_fraction = 0.1});
  EXPECT_DOUBLE_EQ(learning_rate(c, 60), 2.0);
  EXPECT_NEAR(learning_rate(c, 80), 2.0 * 0.55, 1e-12);
  EXPECT_NEAR(learning_rate(c, 100), 0.2, 1e-12);
}

TEST(LearningRate, CosineIsHalfWayInTheMiddle) {
  const auto c = config(100, {.warmup_steps = 0, .decay = Decay::kCosine});
  EXPECT_NEAR(learning_rate(c, 50), 1.0, 1e-12);
  EXPECT_NEAR(learning_rate(c, 100), 0.0, 1e-12);
}

TEST(LearningRate, WarmUpLongerThanTheRunNeverDividesByZero) {
  const auto c = config(10, {.warmup_steps = 10, .decay = Decay::kLinear});
  EXPECT_DOUBLE_EQ(learning_rate(c, 5), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(c, 10), 0.0);
}

}  // namespace
}  // namespace flowshard::training
