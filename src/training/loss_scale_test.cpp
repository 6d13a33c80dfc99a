#include "training/loss_scale.h"

#include <gtest/gtest.h>

#include "training/precision.h"

namespace flowshard::training {
namespace {

TEST(LossScale, HalvesDownToOne) {
  LossScale scale(true);
  int halvings = 0;
  while (scale.back_off()) ++halvings;
  EXPECT_EQ(halvings, 16);
  EXPECT_EQ(scale.factor(), 1);
}

TEST(LossScale, DoublesAfterManyCleanSteps) {
  LossScale scale(true);
  for (int step = 1; step < LossScale::kGrowthInterval; ++step) scale.step_was_clean();
  EXPECT_EQ(scale.factor(), LossScale::kInitial);
  scale.step_was_clean();
  EXPECT_EQ(scale.factor(), 2 * LossScale::kInitial);
  scale.back_off();
  EXPECT_EQ(scale.clean_steps(), 0);
}

TEST(LossScale, GoesOnWhereItStood) {
  LossScale scale(true);
  scale.restore(512, LossScale::kGrowthInterval - 1);
  scale.step_was_clean();
  EXPECT_EQ(scale.factor(), 1024);
}

TEST(LossScale, IsOneWhereItIsNotNeeded) {
  LossScale scale(false);
  for (int step = 0; step < 2 * LossScale::kGrowthInterval; ++step) scale.step_was_clean();
  EXPECT_EQ(scale.factor(), 1);
  EXPECT_FALSE(scale.back_off());
}

TEST(LossScale, IsNeededWhereParametersOrGradientsAreInFp16) {
  TrainConfig config;
  EXPECT_FALSE(precision_of(config).needs_loss_scale());
  config.precision.reduce_dtype = Dtype::kFp16;
  EXPECT_TRUE(precision_of(config).needs_loss_scale());
  config.precision = {.mode = Precision::kFp16};
  EXPECT_TRUE(precision_of(config).needs_loss_scale());
  EXPECT_EQ(precision_of(config).buffer_dtype, at::kBFloat16);
}

}  // namespace
}  // namespace flowshard::training
