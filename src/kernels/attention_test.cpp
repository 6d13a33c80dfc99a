#include "kernels/attention.h"

#include <gtest/gtest.h>

#include "kernels/finite_difference.h"

namespace flowshard::kernels {
namespace {

TEST(Attention, EqualsTheFormula) {
  at::manual_seed(0);
  const int64_t heads = 2, length = 5, keys = 7, dim = 4;
  const at::Tensor q = at::randn({1, heads, length, dim}, at::kDouble);
  const at::Tensor k = at::randn({1, heads, keys, dim}, at::kDouble);
  const at::Tensor v = at::randn({1, heads, keys, dim}, at::kDouble);
  const at::Tensor out = attention(q, k, v);
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < length; ++i) {
      double total = 0;
      std::vector<double> sum(dim, 0.0);
      for (int64_t j = 0; j < keys; ++j) {
        double product = 0;
        for (int64_t d = 0; d < dim; ++d)
          product += q[0][h][i][d].item<double>() * k[0][h][j][d].item<double>();
        const double weight = std::exp(product / 2);  // 2 = sqrt(dim)
        total += weight;
        for (int64_t d = 0; d < dim; ++d) sum[d] += weight * v[0][h][j][d].item<double>();
      }
      for (int64_t d = 0; d < dim; ++d) EXPECT_NEAR(out[0][h][i][d].item<double>(), sum[d] / total, 1e-12);
    }
  }
}

TEST(Attention, GradientsAreTheDerivatives) {
  at::manual_seed(0);
  const std::vector<at::Tensor> inputs = {at::randn({2, 2, 3, 4}, at::kDouble),
                                          at::randn({2, 2, 3, 4}, at::kDouble),
                                          at::randn({2, 2, 3, 4}, at::kDouble)};
  const at::Tensor weight = at::randn({2, 3, 8}, at::kDouble);
  const auto loss = [&](const std::vector<at::Tensor>& in) {
    return (attention(in[0], in[1], in[2]).transpose(1, 2).flatten(2) * weight).sum();
  };
  EXPECT_LT(gradient_error(loss, inputs), 1e-8);
}

TEST(Attention, RefusesShapesThatDoNotMatch) {
  const at::Tensor q = at::ones({1, 2, 3, 4});
  EXPECT_THROW(attention(q, at::ones({1, 1, 3, 4}), at::ones({1, 1, 3, 4})), c10::Error);
  EXPECT_THROW(attention(q, q, at::ones({1, 2, 3, 8})), c10::Error);
}

}  // namespace
}  // namespace flowshard::kernels
