#include <gtest/gtest.h>

#include "nn/linear.h"

namespace flowshard::nn {
namespace {

// The first linear of a FLUX.1 MLP at 1024 x 1024.
constexpr int64_t kTokens = 4608, kInputs = 3072, kOutputs = 12288;

class LinearGpu : public testing::TestWithParam<at::ScalarType> {
 protected:
  LinearGpu() : layer(group, "mlp", kInputs, kOutputs) {
    at::manual_seed(0);
    for (Parameter* parameter : group.parameters) {
      parameter->value = random(parameter->shape);
      parameter->trainable = true;
      // Slices of a flat buffer, not aligned to more than an element.
      parameter->grad =
          at::full({parameter->numel() + 1}, NAN, at::TensorOptions(at::kCUDA).dtype(at::kFloat))
              .slice(0, 1)
              .view(parameter->shape);
    }
  }
  static at::Tensor random(at::IntArrayRef shape) {
    return at::randn(shape, at::TensorOptions(at::kCUDA).dtype(at::kFloat)).to(GetParam());
  }
  ParameterGroup group{"root", {}};
  Linear layer;
};

double relative_error(const at::Tensor& actual, const at::Tensor& expected) {
  return ((actual.to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
}

TEST_P(LinearGpu, GradientsInFp32AreThoseOfFp64) {
  const at::Tensor rows = at::arange(0, kOutputs, 97, at::kCUDA);  // sampled
  at::Tensor weight_grad =
      at::zeros({rows.numel(), kInputs}, at::TensorOptions(at::kCUDA).dtype(at::kDouble));
  at::Tensor bias_grad = at::zeros({kOutputs}, weight_grad.options());
  for (int pass = 0; pass < 3; ++pass) {  // the first writes, the others add
    const at::Tensor x = random({1, kTokens, kInputs}), grad = random({1, kTokens, kOutputs});
    layer.forward(x).backward(grad);
    weight_grad += grad[0].index_select(1, rows).to(at::kDouble).t().mm(x[0].to(at::kDouble));
    bias_grad += grad[0].to(at::kDouble).sum(0);
    // One rounding to bf16 would be 2e-3, to fp16 2e-4.
    EXPECT_LT(relative_error(layer.weight.grad.index_select(0, rows), weight_grad), 5e-5) << "pass " << pass;
    EXPECT_LT(relative_error(layer.bias->grad, bias_grad), 5e-6) << "pass " << pass;
    EXPECT_EQ(layer.weight.grad.scalar_type(), at::kFloat);
  }
}

TEST_P(LinearGpu, GradientsInTheDtypeOfTheProduct) {
  for (Parameter* parameter : group.parameters) parameter->grad = at::Tensor();
  const at::Tensor x = random({1, kTokens, kInputs}), grad = random({1, kTokens, kOutputs});
  layer.forward(x).backward(grad);
  const at::Tensor expected = grad[0].slice(1, 0, 64).to(at::kDouble).t().mm(x[0].to(at::kDouble));
  EXPECT_EQ(layer.weight.grad.scalar_type(), GetParam());
  EXPECT_LT(relative_error(layer.weight.grad.slice(0, 0, 64), expected), 3e-3);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, LinearGpu, testing::Values(at::kBFloat16, at::kHalf));

}  // namespace
}  // namespace flowshard::nn
