#include "kernels/adamw.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/blockwise_quantization.h"
#include "kernels/relative_error.h"

namespace flowshard::kernels {
namespace {

AdamWTensors state_of(const at::Tensor& param, bool codes) {
  const int64_t count = param.numel();
  if (!codes) return {.param = param, .exp_avg = at::zeros({count}), .exp_avg_sq = at::zeros({count})};
  return {.param = param,
          .exp_avg = at::full({count}, zero_code(CodeKind::kSigned), at::kByte),
          .exp_avg_sq = at::full({count}, zero_code(CodeKind::kUnsigned), at::kByte),
          .exp_avg_scale = at::zeros({num_code_blocks(count)}),
          .exp_avg_sq_scale = at::zeros({num_code_blocks(count)})};
}

/// The formula, in fp64.
struct Exact {
  at::Tensor param, exp_avg, exp_avg_sq;
  void step(const at::Tensor& grad, const AdamWOptions& options) {
    const at::Tensor g = grad.to(at::kDouble) * options.grad_scale;
    param = param * (1 - options.lr * options.weight_decay);
    exp_avg = options.beta1 * exp_avg + (1 - options.beta1) * g;
    exp_avg_sq = options.beta2 * exp_avg_sq + (1 - options.beta2) * g * g;
    const double bias1 = 1 - std::pow(options.beta1, options.step);
    const double bias2 = 1 - std::pow(options.beta2, options.step);
    param = param - options.lr * (exp_avg / bias1) / ((exp_avg_sq / bias2).sqrt() + options.eps);
  }
};

TEST(AdamW, FollowsTheFormula) {
  at::manual_seed(1);
  constexpr int64_t kCount = 300'001;  // more than one piece of the CPU path
  for (const at::ScalarType grad_type : {at::kFloat, at::kBFloat16}) {
    AdamWTensors tensors = state_of(at::randn({kCount}), /*codes=*/false);
    Exact exact{tensors.param.to(at::kDouble), at::zeros({kCount}, at::kDouble),
                at::zeros({kCount}, at::kDouble)};
    AdamWOptions options{.lr = 0.01, .beta2 = 0.99, .weight_decay = 0.1, .grad_scale = 0.3};
    for (options.step = 1; options.step <= 4; ++options.step) {
      tensors.grad = at::randn({kCount}).to(grad_type);
      const at::Tensor given = tensors.grad.clone();
      adamw_step(tensors, options);
      exact.step(given, options);
      EXPECT_TRUE(at::equal(tensors.grad, given));
    }
    EXPECT_LT(relative_error(tensors.param, exact.param), 1e-6);
    EXPECT_LT(relative_error(tensors.exp_avg, exact.exp_avg), 1e-6);
    EXPECT_LT(relative_error(tensors.exp_avg_sq, exact.exp_avg_sq), 1e-6);
  }
}

/// Parameters of `value` after a step that takes them to value * (1 - 2^-12): no bf16 number for most.
at::Tensor decayed(const at::Tensor& value, uint64_t seed, int64_t step, int64_t first_element = 0) {
  AdamWTensors tensors = state_of(value.to(at::kBFloat16), /*codes=*/false);
  tensors.grad = at::zeros(value.sizes());
  adamw_step(tensors,
             {.lr = 1, .weight_decay = 0x1p-12, .step = step, .seed = seed, .first_element = first_element});
  return tensors.param;
}

TEST(AdamW, StochasticRoundingIsUnbiased) {
  constexpr int64_t kCount = 1 << 20;
  for (const double value : {1.0, -1.375, 3e-5}) {
    const at::Tensor start = at::full({kCount}, value).to(at::kBFloat16).to(at::kFloat);
    const at::Tensor rounded = decayed(start, 7, 1).to(at::kDouble);
    const double exact = start[0].item<double>() * (1 - 0x1p-12), step = std::abs(exact) * 0x1p-8;
    // The neighbours of a bf16 number are at most 2^-7 apart; the mean of 2^20 has 2^-10 of their deviation.
    EXPECT_NEAR(rounded.mean().item<double>(), exact, 4 * step / 1024);
    EXPECT_LE((rounded - exact).abs().max().item<double>(), 2 * step);
    EXPECT_GT((rounded != start[0].item<double>()).sum().item<int64_t>(), kCount / 100);
  }
}

TEST(AdamW, StochasticRoundingKeepsWhatBFloat16Represents) {
  at::manual_seed(2);
  AdamWTensors tensors = state_of(at::randn({100'003}).to(at::kBFloat16), /*codes=*/false);
  tensors.grad = at::zeros({100'003});
  const at::Tensor before = tensors.param.clone();
  adamw_step(tensors, {.lr = 0.1});
  EXPECT_TRUE(at::equal(tensors.param, before));
}

TEST(AdamW, RoundingDependsOnSeedStepAndGlobalIndexAlone) {
  at::manual_seed(3);
  const at::Tensor start = at::randn({10'001});
  const at::Tensor whole = decayed(start, 5, 9);
  for (const int64_t cut : {1, 2, 3, 4, 4097}) {
    const at::Tensor parts =
        at::cat({decayed(start.slice(0, 0, cut), 5, 9), decayed(start.slice(0, cut), 5, 9, cut)});
    EXPECT_TRUE(at::equal(parts, whole)) << cut;
  }
  EXPECT_FALSE(at::equal(decayed(start, 6, 9), whole));
  EXPECT_FALSE(at::equal(decayed(start, 5, 10), whole));
}

TEST(AdamW, PureBFloat16FollowsFp32OnTheMean) {
  // Updates of 2^-12 of the parameter, an eighth of half a step of bf16: rounding to nearest would lose them
  // all.
  constexpr int64_t kCount = 1 << 14;
  AdamWTensors tensors = state_of(at::full({kCount}, 1.0, at::kBFloat16), /*codes=*/true);
  tensors.grad = at::ones({kCount}, at::kBFloat16);
  AdamWOptions options{.lr = 0x1p-12, .seed = 3};
  for (options.step = 1; options.step <= 256; ++options.step) adamw_step(tensors, options);
  EXPECT_NEAR(tensors.param.to(at::kDouble).mean().item<double>(), 1 - 256 * 0x1p-12, 1e-3);
}

TEST(AdamW, CodesHoldTheMomentsWithinHalfAStep) {
  at::manual_seed(4);
  constexpr int64_t kCount = 1000;
  AdamWTensors tensors = state_of(at::randn({kCount}), /*codes=*/true);
  const AdamWOptions options{.lr = 0.01};
  tensors.grad = at::randn({kCount});
  adamw_step(tensors, options);
  const at::Tensor exp_avg = at::empty({kCount}), exp_avg_sq = at::empty({kCount});
  dequantize_blockwise(tensors.exp_avg, tensors.exp_avg_scale, exp_avg, CodeKind::kSigned);
  dequantize_blockwise(tensors.exp_avg_sq, tensors.exp_avg_sq_scale, exp_avg_sq, CodeKind::kUnsigned);
  for (int64_t first = 0; first < kCount; first += 256) {
    const at::Tensor g = tensors.grad.slice(0, first, std::min(kCount, first + 256));
    const auto error = [&](const at::Tensor& got, const at::Tensor& exact) {
      return ((got.slice(0, first, first + g.numel()) - exact).abs().max() / exact.abs().max())
          .item<double>();
    };
    EXPECT_LE(error(exp_avg, 0.1 * g), 0.00704);
    EXPECT_LE(error(exp_avg_sq, 0.001 * g * g), 0.00352);
  }
  const int64_t bytes = tensors.exp_avg.nbytes() + tensors.exp_avg_sq.nbytes() +
                        tensors.exp_avg_scale.nbytes() + tensors.exp_avg_sq_scale.nbytes();
  EXPECT_EQ(bytes, 2 * kCount + 2 * 4 * 4);  // four blocks
}

/// Half the sum of a (x - c)^2 after 400 steps from 0, of a quadratic with curvatures between 0.01 and 100.
double loss_of_quadratic(bool codes) {
  at::manual_seed(5);
  constexpr int64_t kCount = 2000;
  const at::Tensor curvature = at::pow(at::scalar_tensor(10.0), at::rand({kCount}) * 4 - 2);
  const at::Tensor target = at::randn({kCount});
  AdamWTensors tensors = state_of(at::zeros({kCount}), codes);
  AdamWOptions options;
  for (options.step = 1; options.step <= 400; ++options.step) {
    options.lr = 0.03 * (1 - static_cast<double>(options.step - 1) / 400);
    tensors.grad = curvature * (tensors.param - target);
    adamw_step(tensors, options);
  }
  return (0.5 * curvature * (tensors.param - target).square()).sum().item<double>();
}

TEST(AdamW, CodesConvergeAsFp32DoesOnAQuadratic) {
  const double exact = loss_of_quadratic(false), coded = loss_of_quadratic(true);
  EXPECT_LT(coded, 2 * exact + 1e-3);
}

TEST(AdamW, SmallGradientsOfABlockTakeNoStepsThatAreTooLarge) {
  AdamWTensors tensors = state_of(at::zeros({256}), /*codes=*/true);
  tensors.grad = at::full({256}, 1e-4);
  tensors.grad[0] = 1.0f;
  AdamWOptions options{.lr = 0.001};
  for (options.step = 1; options.step <= 100; ++options.step) adamw_step(tensors, options);
  // With constant gradients every step of AdamW is lr.
  EXPECT_NEAR(tensors.param[0].item<double>(), -0.1, 1e-3);
  EXPECT_LT(tensors.param.abs().max().item<double>(), 0.101);
}

TEST(AdamW, RefusesTensorsThatDoNotFit) {
  AdamWTensors tensors = state_of(at::zeros({300}), /*codes=*/true);
  tensors.grad = at::zeros({300});
  AdamWTensors other = tensors;
  other.grad = at::zeros({299});
  EXPECT_THROW(adamw_step(other, {}), c10::Error);
  other = tensors;
  other.exp_avg_scale = at::zeros({1});
  EXPECT_THROW(adamw_step(other, {}), c10::Error);
  other = tensors;
  other.exp_avg_sq = at::zeros({300});
  EXPECT_THROW(adamw_step(other, {}), c10::Error);
  other = tensors;
  other.param = at::zeros({600}).slice(0, 0, 600, 2);
  EXPECT_THROW(adamw_step(other, {}), c10::Error);
  EXPECT_THROW(adamw_step(tensors, {.step = 0}), c10::Error);
}

}  // namespace
}  // namespace flowshard::kernels
