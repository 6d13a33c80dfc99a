#include "kernels/layer_norm_modulate.h"

#include <gtest/gtest.h>

#include "kernels/finite_difference.h"

namespace flowshard::kernels {
namespace {

constexpr int64_t kBatch = 2, kTokens = 3, kChannels = 10;

struct LayerNormModulateTest : testing::Test {
  LayerNormModulateTest() {
    at::manual_seed(0);
    x = at::randn({kBatch, kTokens, kChannels}, at::kDouble) * 3 + 1;
    shift = at::randn({kBatch, kChannels}, at::kDouble);
    scale = at::randn({kBatch, kChannels}, at::kDouble);
  }
  double expected(int64_t b, int64_t l, int64_t d) const {
    const auto row = x.accessor<double, 3>()[b][l];
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < kChannels; ++i) mean += row[i] / kChannels;
    for (int64_t i = 0; i < kChannels; ++i) variance += (row[i] - mean) * (row[i] - mean) / kChannels;
    return (row[d] - mean) / std::sqrt(variance + 1e-6) * (1 + scale[b][d].item<double>()) +
           shift[b][d].item<double>();
  }
  void expect_formula(const at::Tensor& y, double tolerance) const {
    ASSERT_EQ(y.sizes(), x.sizes());
    for (int64_t b = 0; b < kBatch; ++b)
      for (int64_t l = 0; l < kTokens; ++l)
        for (int64_t d = 0; d < kChannels; ++d)
          EXPECT_NEAR(y[b][l][d].item<double>(), expected(b, l, d), tolerance) << b << ' ' << l << ' ' << d;
  }
  at::Tensor x, shift, scale;
};

TEST_F(LayerNormModulateTest, EqualsTheFormulaInDouble) {
  expect_formula(layer_norm_modulate(x, shift, scale), 1e-12);
}

TEST_F(LayerNormModulateTest, EqualsTheFormulaInFloat) {
  expect_formula(layer_norm_modulate(x.to(at::kFloat), shift.to(at::kFloat), scale.to(at::kFloat)), 1e-5);
}

TEST_F(LayerNormModulateTest, TakesTransposedInput) {
  const at::Tensor transposed = x.transpose(1, 2).contiguous().transpose(1, 2);
  expect_formula(layer_norm_modulate(transposed, shift, scale), 1e-12);
}

TEST_F(LayerNormModulateTest, GradientsAreTheDerivatives) {
  const at::Tensor weight = at::randn(x.sizes(), at::kDouble);
  const auto loss = [&](const std::vector<at::Tensor>& in) {
    return (layer_norm_modulate(in[0], in[1], in[2]) * weight).sum();
  };
  EXPECT_LT(gradient_error(loss, {x, shift, scale}), 1e-8);
}

TEST_F(LayerNormModulateTest, RefusesModulationOfAnotherBatchOrDtype) {
  EXPECT_THROW(layer_norm_modulate(x, shift.narrow(0, 0, 1), scale), c10::Error);
  EXPECT_THROW(layer_norm_modulate(x, shift, scale.to(at::kFloat)), c10::Error);
}

}  // namespace
}  // namespace flowshard::kernels
