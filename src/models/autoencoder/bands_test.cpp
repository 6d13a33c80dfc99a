#include "models/autoencoder/bands.h"

#include <gtest/gtest.h>

namespace flowshard::models {
namespace {

struct BandsTest : testing::TestWithParam<int64_t> {
  BandsTest() : norm(group, "norm", 6, 3), conv(group, "conv", 6, 4), shortcut(group, "shortcut", 6, 4, 1) {
    at::manual_seed(0);
    nn::materialize(group.parameters, at::kFloat);
    for (nn::Parameter* parameter : group.parameters) parameter->value.normal_();
    x = at::randn({2, 6, GetParam(), 5}) * 3 + 2;
  }
  // Makes bands of `rows` rows of an x that has more than four times as many.
  int64_t bytes_for(int64_t rows) const { return 4 * rows * x.numel() / x.size(2) * x.element_size(); }

  nn::ParameterGroup group;
  GroupNorm norm;
  Conv2d conv, shortcut;
  at::Tensor x;
};

TEST_P(BandsTest, NormAndConvolutionAreThoseOfTheWholePicture) {
  const at::Tensor whole = conv.forward(norm.forward_silu(x));
  for (const int64_t rows : {1, 2, 3, 4, 7}) {
    const at::Tensor banded = norm_silu_conv(norm, conv, x, bytes_for(rows));
    EXPECT_LT((banded - whole).abs().max().item<double>(), 2e-5 * whole.abs().max().item<double>()) << rows;
  }
}

TEST_P(BandsTest, UpsamplingAndConvolutionAreThoseOfTheWholePicture) {
  const at::Tensor whole = conv.forward(at::upsample_nearest2d(x, {2 * x.size(2), 2 * x.size(3)}));
  for (const int64_t rows : {1, 2, 3, 4, 7}) {
    const at::Tensor banded = upsample_conv(conv, x, 4 * bytes_for(rows));
    EXPECT_LT((banded - whole).abs().max().item<double>(), 1e-5 * whole.abs().max().item<double>()) << rows;
  }
}

TEST_P(BandsTest, AConvolutionIsAddedToEveryRowOnce) {
  const at::Tensor whole = shortcut.forward(x);
  at::Tensor sum = at::ones_like(whole);
  add_conv(sum, shortcut, x, bytes_for(2));
  EXPECT_TRUE(at::allclose(sum, whole + 1, 1e-5, 1e-5));
}

INSTANTIATE_TEST_SUITE_P(Heights, BandsTest, testing::Values(1, 2, 5, 17, 38));

}  // namespace
}  // namespace flowshard::models
