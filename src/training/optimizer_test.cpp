#include "training/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "nn/linear.h"

namespace flowshard::training {
namespace {

/// One rank, one group with one parameter of three elements whose gradient is set by hand.
struct OptimizerTest : testing::Test {
  OptimizerTest()
      : parameter("p", {3}),
        root{"", {&parameter}},
        ranks(distributed::ProcessGroup::create({}, at::kCPU, std::chrono::seconds(5))),
        mesh(*ranks, 1),
        state({&root}, {mesh, at::kCPU}) {
    parameter.trainable = true;
    state.initialize([&](const nn::ParameterGroup&) {
      parameter.value.copy_(at::tensor({1.0f, -2.0f, 0.5f}));
    });
    gradient = state.groups()[0]->grad_shard();
    gradient.copy_(at::tensor({3.0f, 0.0f, 4.0f}));
  }
  nn::Parameter parameter;
  nn::ParameterGroup root;
  std::unique_ptr<distributed::ProcessGroup> ranks;
  distributed::DeviceMesh mesh;
  fsdp::ShardedState state;
  at::Tensor gradient;
};

TEST_F(OptimizerTest, FollowsTheFormulaOfAdamW) {
  TrainConfig config;
  config.optimizer = {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1};
  config.ema.decay = 0.5;
  Optimizer optimizer(state, config, at::kCPU);
  double p[] = {1, -2, 0.5}, m[3] = {}, v[3] = {}, ema[] = {1, -2, 0.5};
  const double g[] = {1.5, 0, 2};  // scaled by 0.5
  for (int step = 1; step <= 3; ++step) {
    gradient.copy_(at::tensor({3.0f, 0.0f, 4.0f}));
    optimizer.step(/*lr=*/0.01, /*grad_scale=*/0.5);
    for (int i = 0; i < 3; ++i) {
      p[i] *= 1 - 0.01 * 0.1;
      m[i] = 0.9 * m[i] + 0.1 * g[i];
      v[i] = 0.99 * v[i] + 0.01 * g[i] * g[i];
      p[i] -=
          0.01 * (m[i] / (1 - std::pow(0.9, step))) / (std::sqrt(v[i] / (1 - std::pow(0.99, step))) + 1e-8);
      ema[i] += 0.5 * (p[i] - ema[i]);
      EXPECT_NEAR(state.groups()[0]->master_shard()[i].item<float>(), p[i], 1e-6);
      EXPECT_NEAR(optimizer.states(0).back().second[i].item<float>(), ema[i], 1e-6);
    }
  }
  EXPECT_EQ(optimizer.step_count(), 3);
}

TEST_F(OptimizerTest, ASkippedStepCountsForTheScheduleAlone) {
  const auto two_steps = [&](bool skip) {
    state.groups()[0]->master_shard().copy_(at::tensor({1.0f, -2.0f, 0.5f}));
    Optimizer optimizer(state, {}, at::kCPU);
    for (int step = 0; step < 2; ++step) {
      gradient.copy_(at::tensor({3.0f, 0.0f, 4.0f}));
      optimizer.step(/*lr=*/0.01, /*grad_scale=*/1);
      if (skip) optimizer.skip_step();
    }
    EXPECT_EQ(optimizer.step_count(), skip ? 4 : 2);
    EXPECT_EQ(optimizer.skipped_steps(), skip ? 2 : 0);
    return state.groups()[0]->master_shard().clone();
  };
  EXPECT_TRUE(at::equal(two_steps(false), two_steps(true)));
}

TEST_F(OptimizerTest, EightBitMomentsAreSavedAndRestoredExactly) {
  TrainConfig config;
  config.optimizer.state_dtype = StateDtype::kInt8;
  const auto moved_by = [&](Optimizer& optimizer) {
    const at::Tensor before = state.groups()[0]->master_shard().clone();
    gradient.copy_(at::tensor({-1.0f, 2.0f, 0.3f}));
    optimizer.step(/*lr=*/0.01, /*grad_scale=*/1);
    const at::Tensor after = state.groups()[0]->master_shard().clone();
    state.groups()[0]->master_shard().copy_(before);
    return after - before;
  };
  Optimizer first(state, config, at::kCPU), second(state, config, at::kCPU);
  moved_by(first);
  for (const auto& [name, values] : first.states(0)) {
    EXPECT_EQ(values.scalar_type(), at::kFloat);
    second.restore(0, name, values);
  }
  second.restore_counts(first.step_count(), 0);
  EXPECT_TRUE(at::equal(moved_by(first), moved_by(second)));
}

}  // namespace
}  // namespace flowshard::training
