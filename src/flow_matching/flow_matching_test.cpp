#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "core/error.h"
#include "core/temporary_folder.h"
#include "flow_matching/denoise.h"
#include "flow_matching/latents.h"
#include "flow_matching/loss.h"
#include "flow_matching/schedule.h"

namespace flowshard::flow_matching {
namespace {

TEST(Schedule, MatchesThePublishedValues) {
  // Values of the reference implementations for 4 steps at 1024x1024 and 512x512.
  const std::vector<float> large = {1, .904531f, .759511f, .512844f, 0};
  const std::vector<float> small = {1, .849235f, .652489f, .384945f, 0};
  const auto got_large = get_schedule({}, 4, 4096), got_small = get_schedule({}, 4, 1024);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(got_large[i], large[i], 1e-6);
    EXPECT_NEAR(got_small[i], small[i], 1e-6);
  }
}

TEST(Schedule, ShiftIsTheLineThroughBothEndsAndNotClamped) {
  EXPECT_NEAR(shift_mu({}, 256), 0.5, 1e-12);
  EXPECT_NEAR(shift_mu({}, 4096), 1.15, 1e-12);
  EXPECT_NEAR(shift_mu({}, 2304), 0.846667, 1e-6);
  EXPECT_NEAR(shift_mu({}, 16384), 3.23, 1e-2);
}

TEST(Schedule, WithoutDynamicShiftTheStepsAreEven) {
  const auto sigmas = get_schedule({.use_dynamic_shifting = false}, 4, 4096);
  EXPECT_EQ(sigmas, (std::vector<float>{1, .75f, .5f, .25f, 0}));
}

TEST(Schedule, AShiftThatGivesNoSigmasIsRefused) {
  ScheduleConfig steep{.base_image_seq_len = 1, .max_image_seq_len = 2};
  EXPECT_THROW(get_schedule(steep, 4, 4096), ConfigError);
  EXPECT_THROW(get_schedule({.base_shift = 1e300, .max_shift = 2e300}, 4, 4096), ConfigError);
  EXPECT_THROW(get_schedule({.base_shift = -1e300, .max_shift = 0}, 4, 256), ConfigError);
  EXPECT_THROW(get_schedule({.use_dynamic_shifting = false, .shift = 1e-300}, 4, 256), ConfigError);
}

TEST(Schedule, UnsupportedSchedulerIsNamed) {
  const TemporaryFolder folder;
  const auto path = folder / "scheduler_config.json";
  std::ofstream(path) << R"({"_class_name": "DDIMScheduler"})";
  try {
    ScheduleConfig::from_file(path);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("DDIMScheduler"), std::string::npos);
  }
}

TEST(Latents, PackPutsAPatchInChannelMajorOrder) {
  // Value = channel * 100 + row * 10 + column.
  const at::Tensor latents = at::arange(2).view({1, 2, 1, 1}) * 100 + at::arange(4).view({1, 1, 4, 1}) * 10 +
                             at::arange(6).view({1, 1, 1, 6});
  const at::Tensor tokens = pack(latents);
  ASSERT_EQ(tokens.sizes(), (std::vector<int64_t>{1, 6, 8}));
  const at::Tensor last = at::tensor({24, 25, 34, 35, 124, 125, 134, 135}, at::kLong);
  EXPECT_TRUE(at::equal(tokens[0][5], last));
  EXPECT_TRUE(at::equal(unpack(tokens, 4, 6), latents));
}

TEST(Schedule, StrengthLeavesOutTheFirstSteps) {
  EXPECT_EQ(first_step(28, 1.0), 0);
  EXPECT_EQ(first_step(28, 0.6), 11);  // 28 - 16.8
  EXPECT_EQ(first_step(4, 0.1), 3);
  EXPECT_EQ(first_step(10, 0.3), 7);
  EXPECT_EQ(first_step(28, 0.0), 28);
}

TEST(Latents, IdsAreRowAndColumn) {
  const at::Tensor ids = image_ids(4, 6);
  EXPECT_TRUE(at::equal(ids[4], at::tensor({0.f, 1.f, 1.f})));
  // Positions above 256 stay distinct.
  EXPECT_TRUE(at::equal(image_ids(2, 1200).select(1, 2), at::arange(600, at::kFloat)));
}

TEST(Denoise, IntegratesAClosedForm) {
  // dx/dsigma = x has the solution x(0) = x(1) / e.
  const auto sigmas = get_schedule({.use_dynamic_shifting = false}, 2000, 1);
  const at::Tensor x = denoise([](const at::Tensor& x, float) { return x; }, at::ones({1, 1, 1}), sigmas);
  EXPECT_NEAR(x.item<float>(), std::exp(-1.0), 2e-4);
}

TEST(Denoise, IsExactForAStraightPathInOneStep) {
  const at::Tensor noise = at::randn({1, 4, 8}), image = at::randn({1, 4, 8});
  const std::vector<float> sigmas = {1, 0};
  const auto velocity = [&](const at::Tensor&, float) { return noise - image; };
  EXPECT_TRUE(at::allclose(denoise(velocity, noise, sigmas), image, 1e-5, 1e-6));
}

TEST(Denoise, EachStepOfAStraightPathSeesItsEnd) {
  const at::Tensor noise = at::randn({1, 4, 8}), image = at::randn({1, 4, 8});
  const std::vector<float> sigmas = {1, 0.7f, 0.2f, 0};
  std::vector<int64_t> steps;
  const auto velocity = [&](const at::Tensor&, float) { return noise - image; };
  denoise(velocity, noise, sigmas, [&](const Step& step) {
    steps.push_back(step.index);
    EXPECT_EQ(step.num_steps, 3);
    EXPECT_TRUE(at::allclose(step.x, step.sigma * noise + (1 - step.sigma) * image, 1e-5, 1e-6));
    EXPECT_TRUE(at::allclose(step.estimate(), image, 1e-5, 1e-6));
  });
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3}));
}

TEST(Denoise, TrueCfgExtrapolates) {
  const auto constant = [](double value) {
    return [value](const at::Tensor& x, float) { return at::full_like(x, value); };
  };
  EXPECT_NEAR(with_true_cfg(constant(3), constant(1), 2.5)(at::zeros({1}), 1.0f).item<float>(), 1 + 2.5 * 2,
              1e-6);
}

TEST(Loss, NoiseDependsOnSeedSampleAndEpochAlone) {
  const at::Tensor x0 = at::zeros({3, 4, 8});
  const auto all = add_noise(x0, 7, {{10, 0}, {11, 0}, {10, 1}}, {});
  const auto alone = add_noise(x0.narrow(0, 0, 1), 7, {{11, 0}}, {});
  EXPECT_TRUE(at::equal(all.x_t[1], alone.x_t[0]));
  EXPECT_TRUE(at::equal(all.t[1], alone.t[0]));
  EXPECT_FALSE(at::equal(all.target[0], all.target[1]));
  EXPECT_FALSE(at::equal(all.target[0], all.target[2]));
  EXPECT_FALSE(at::equal(add_noise(x0.narrow(0, 0, 1), 8, {{11, 0}}, {}).target[0], alone.target[0]));
}

TEST(Loss, PathAndTargetAgree) {
  const at::Tensor x0 = at::randn({2, 4, 8});
  const auto batch = add_noise(x0, 1, {{0, 0}, {1, 0}}, {.mean = 0.5});
  // x_t - t * v = x0 for the straight path.
  EXPECT_TRUE(at::allclose(batch.x_t - batch.t.view({-1, 1, 1}) * batch.target, x0, 1e-4, 1e-5));
}

TEST(Loss, TimesFollowTheLogitNormalDensity) {
  std::vector<SampleKey> keys(4000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i].sample_id = i;
  const auto t = add_noise(at::zeros({4000, 1, 1}), 3, keys, {.mean = 0.5}).t;
  // The median of sigmoid(0.5 + N) is sigmoid(0.5); a shift mu moves the logit by mu.
  EXPECT_NEAR(t.median().item<float>(), 1 / (1 + std::exp(-0.5)), 0.015);
  const auto shifted = add_noise(at::zeros({4000, 1, 1}), 3, keys, {.mean = 0.5, .mu = 1.15}).t;
  EXPECT_NEAR(shifted.median().item<float>(), 1 / (1 + std::exp(-1.65)), 0.015);
}

TEST(Loss, ValidationNoiseDependsOnTheNumberOfTheSampleAlone) {
  const at::Tensor x0 = at::randn({3, 4, 8}), t = at::tensor({0.f, 0.5f, 0.875f});
  const auto all = add_validation_noise(x0, 6, t);
  const auto one = add_validation_noise(x0.narrow(0, 2, 1), 8, t.narrow(0, 2, 1));
  EXPECT_TRUE(at::equal(all.x_t[2], one.x_t[0]));
  EXPECT_TRUE(at::equal(all.x_t[0], x0[0]));  // no noise at t = 0
  EXPECT_TRUE(at::equal(all.t, t));
  EXPECT_TRUE(at::allclose(all.x_t - t.view({-1, 1, 1}) * all.target, x0, 1e-4, 1e-5));
  EXPECT_FALSE(at::allclose(all.target[0] + x0[0], all.target[1] + x0[1]));
}

TEST(Loss, PartsOfABatchAddUpToTheMean) {
  const at::Tensor velocity = at::randn({4, 2, 3}), target = at::randn({4, 2, 3});
  const at::Tensor parts = flow_matching_loss(velocity.narrow(0, 0, 1), target.narrow(0, 0, 1), 24) +
                           flow_matching_loss(velocity.narrow(0, 1, 3), target.narrow(0, 1, 3), 24);
  EXPECT_TRUE(at::allclose(parts, (velocity - target).square().mean()));
}

}  // namespace
}  // namespace flowshard::flow_matching
