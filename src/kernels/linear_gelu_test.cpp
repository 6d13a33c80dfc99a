#include "kernels/linear_gelu.h"

#include <gtest/gtest.h>

#include <cmath>

namespace flowshard::kernels {
namespace {

TEST(LinearGelu, EqualsTheFormula) {
  at::manual_seed(0);
  const at::Tensor x = at::randn({2, 3, 5}, at::kDouble), weight = at::randn({4, 5}, at::kDouble);
  const at::Tensor bias = at::randn({4}, at::kDouble), out = linear_gelu(x, weight, bias);
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t l = 0; l < 3; ++l)
      for (int64_t o = 0; o < 4; ++o) {
        const double z = (x[b][l] * weight[o]).sum().item<double>() + bias[o].item<double>();
        const double gelu = 0.5 * z * (1 + std::tanh(std::sqrt(2 / M_PI) * (z + 0.044715 * z * z * z)));
        EXPECT_NEAR(out[b][l][o].item<double>(), gelu, 1e-12);
      }
}

TEST(LinearGelu, WritesPartsOfWiderRowsAndNothingElse) {
  const at::Tensor x = at::randn({1, 3, 5}), weight = at::randn({4, 5}), bias = at::randn({4});
  const at::Tensor wide = at::full({1, 3, 9}, 7.0);
  linear_gelu_out(wide.narrow(-1, 2, 4), x, weight, bias);
  EXPECT_TRUE(at::equal(wide.narrow(-1, 2, 4), linear_gelu(x, weight, bias)));
  EXPECT_TRUE((wide.narrow(-1, 0, 2) == 7).all().item<bool>());
  EXPECT_TRUE((wide.narrow(-1, 6, 3) == 7).all().item<bool>());
}

TEST(LinearGelu, RefusesShapesAndDtypesThatDoNotFit) {
  const at::Tensor x = at::randn({3, 5}), weight = at::randn({4, 5}), bias = at::randn({4});
  EXPECT_THROW(linear_gelu(x.narrow(1, 0, 4), weight, bias), c10::Error);
  EXPECT_THROW(linear_gelu(x, weight, bias.narrow(0, 0, 3)), c10::Error);
  EXPECT_THROW(linear_gelu(x, weight.to(at::kDouble), bias), c10::Error);
  EXPECT_THROW(linear_gelu_out(at::empty({2, 4}), x, weight, bias), c10::Error);
}

}  // namespace
}  // namespace flowshard::kernels
