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

struct AttentionOfStreams : testing::TestWithParam<at::ScalarType> {
  AttentionOfStreams() {
    at::manual_seed(0);
    for (const int64_t length : {3, 5}) {
      inputs.push_back(at::randn({2, length, 3, 4, 8}, at::kDouble).to(GetParam()));
      inputs.push_back(at::randn({8}, at::kDouble).to(GetParam()));
      inputs.push_back(at::randn({8}, at::kDouble).to(GetParam()));
    }
    const at::ScalarType math = GetParam() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor angles = at::rand({8, 4}, math);
    cos = angles.cos();
    sin = angles.sin();
  }
  /// The result and the gradients of the inputs that require one.
  std::vector<at::Tensor> run(bool recompute) {
    std::vector<at::Tensor> leaves;
    for (const at::Tensor& input : inputs)
      leaves.push_back(input.detach().clone().set_requires_grad(input.requires_grad()));
    const std::vector<QkvStream> streams = {{leaves[0], leaves[1], leaves[2]},
                                            {leaves[3], leaves[4], leaves[5]}};
    const JointQkv joint = qk_norm_rope(streams, cos, sin);
    const at::Tensor out =
        recompute ? attention_of_streams(streams, cos, sin) : attention(joint.q, joint.k, joint.v);
    (out.transpose(1, 2).flatten(2) * at::arange(32, out.options())).sum().backward();
    std::vector<at::Tensor> result = {out};
    for (const at::Tensor& leaf : leaves) {
      if (leaf.requires_grad()) result.push_back(leaf.grad());
    }
    return result;
  }
  std::vector<at::Tensor> inputs;
  at::Tensor cos, sin;
};

TEST_P(AttentionOfStreams, ResultAndGradientsAreBitwiseThoseOfTheTwoOperations) {
  for (const bool scales_are_trained : {true, false}) {
    for (size_t i = 0; i < inputs.size(); ++i) inputs[i].set_requires_grad(i % 3 == 0 || scales_are_trained);
    const std::vector<at::Tensor> actual = run(true), expected = run(false);
    ASSERT_EQ(actual.size(), scales_are_trained ? 7u : 3u);
    for (size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(at::equal(actual[i], expected[i])) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, AttentionOfStreams, testing::Values(at::kDouble, at::kFloat, at::kBFloat16));

TEST(Attention, RefusesShapesThatDoNotMatch) {
  const at::Tensor q = at::ones({1, 2, 3, 4});
  EXPECT_THROW(attention(q, at::ones({1, 1, 3, 4}), at::ones({1, 1, 3, 4})), c10::Error);
  EXPECT_THROW(attention(q, q, at::ones({1, 2, 3, 8})), c10::Error);
}

}  // namespace
}  // namespace flowshard::kernels
