#include "nn/linear.h"

#include <gtest/gtest.h>

#include "nn/kept_bytes.h"

namespace flowshard::nn {
namespace {

struct LinearTest : testing::Test {
  LinearTest() : layer(group, "proj", 3, 5) {
    at::manual_seed(0);
    for (Parameter* parameter : group.parameters) {
      parameter->value = at::randn(parameter->shape, at::kDouble);
      parameter->trainable = true;
    }
  }
  ParameterGroup group{"root", {}};
  Linear layer;
};

TEST_F(LinearTest, RegistersItsParameters) {
  ASSERT_EQ(group.parameters.size(), 2u);
  EXPECT_EQ(group.parameters[0]->name, "proj.weight");
  EXPECT_EQ(group.parameters[1]->shape, (std::vector<int64_t>{5}));
}

TEST_F(LinearTest, MaterializeAllocatesEveryValue) {
  materialize(group.parameters, at::TensorOptions(at::kBFloat16));
  EXPECT_EQ(layer.weight.value.sizes(), (std::vector<int64_t>{5, 3}));
  EXPECT_EQ(layer.bias->value.scalar_type(), at::kBFloat16);
}

TEST_F(LinearTest, GradientsEqualAtenAutograd) {
  const at::Tensor x = at::randn({2, 4, 3}, at::kDouble).set_requires_grad(true);
  const at::Tensor target = at::randn({2, 4, 5}, at::kDouble);
  (layer.forward(x) - target).square().sum().backward();

  const at::Tensor x2 = x.detach().clone().set_requires_grad(true);
  const at::Tensor w = layer.weight.value.clone().set_requires_grad(true);
  const at::Tensor b = layer.bias->value.clone().set_requires_grad(true);
  (at::linear(x2, w, b) - target).square().sum().backward();
  EXPECT_TRUE(at::allclose(x.grad(), x2.grad()));
  EXPECT_TRUE(at::allclose(layer.weight.grad, w.grad()));
  EXPECT_TRUE(at::allclose(layer.bias->grad, b.grad()));
}

TEST_F(LinearTest, WeightGradientIsComputedWhenTheInputNeedsNone) {
  layer.forward(at::ones({1, 3}, at::kDouble)).sum().backward();
  EXPECT_TRUE(at::allclose(layer.weight.grad, at::ones({5, 3}, at::kDouble)));
}

TEST_F(LinearTest, SecondBackwardAddsUntilZeroGrad) {
  const at::Tensor x = at::ones({1, 3}, at::kDouble);
  layer.forward(x).sum().backward();
  layer.forward(x).sum().backward();
  EXPECT_TRUE(at::allclose(layer.weight.grad, at::full({5, 3}, 2.0, at::kDouble)));
  layer.weight.zero_grad();
  layer.forward(x).sum().backward();
  EXPECT_TRUE(at::allclose(layer.weight.grad, at::ones({5, 3}, at::kDouble)));
}

TEST_F(LinearTest, BackwardReadsTheWeightThroughTheSlotAndWritesIntoTheGivenBuffer) {
  const at::Tensor x = at::ones({1, 3}, at::kDouble).set_requires_grad(true);
  at::Tensor flat = at::zeros({20}, at::kDouble);
  layer.weight.grad = flat.narrow(0, 0, 15).view({5, 3});
  const at::Tensor y = layer.forward(x);
  // The buffer that held the weight is given away between forward and backward, as under fsdp.
  const at::Tensor original = layer.weight.value.clone();
  layer.weight.value.fill_(99);
  layer.weight.value = original;
  y.sum().backward();
  EXPECT_TRUE(at::allclose(x.grad(), original.sum(0, true)));
  EXPECT_TRUE(at::allclose(flat.narrow(0, 0, 15), at::ones({15}, at::kDouble)));
  EXPECT_EQ(flat.narrow(0, 15, 5).abs().max().item<double>(), 0);
}

TEST_F(LinearTest, GradientsInFp32OfABFloat16ProductAreNotRounded) {
  for (Parameter* parameter : group.parameters) {
    parameter->value = parameter->value.to(at::kBFloat16);
    parameter->grad = at::full(parameter->shape, NAN, at::kFloat);
  }
  at::Tensor weight_grad = at::zeros({5, 3}, at::kDouble), bias_grad = at::zeros({5}, at::kDouble);
  for (int pass = 0; pass < 3; ++pass) {
    const at::Tensor x = at::randn({7, 3}, at::kBFloat16), grad = at::randn({7, 5}, at::kBFloat16);
    layer.forward(x).backward(grad);
    weight_grad += grad.t().to(at::kDouble).mm(x.to(at::kDouble));
    bias_grad += grad.to(at::kDouble).sum(0);
    EXPECT_TRUE(at::allclose(layer.weight.grad.to(at::kDouble), weight_grad, 1e-5, 1e-6)) << pass;
    EXPECT_TRUE(at::allclose(layer.bias->grad.to(at::kDouble), bias_grad, 1e-5, 1e-6)) << pass;
  }
}

TEST_F(LinearTest, FrozenWeightGetsNoGradient) {
  layer.weight.trainable = layer.bias->trainable = false;
  const at::Tensor x = at::ones({1, 3}, at::kDouble).set_requires_grad(true);
  layer.forward(x).sum().backward();
  EXPECT_FALSE(layer.weight.grad.defined());
  EXPECT_TRUE(x.grad().defined());
}

TEST_F(LinearTest, ARecipeIsKeptInPlaceOfItsResult) {
  const auto run = [&](bool recompute) {
    layer.weight.recompute_input = recompute;
    layer.weight.grad = layer.bias->grad = at::Tensor();
    const at::Tensor x = at::arange(12, at::kDouble).view({4, 3}).set_requires_grad(true);
    const Recipe half{[](const std::vector<at::Tensor>& in) { return in[0] * 0.5; }, {x}};
    const KeptBytes kept;
    const at::Tensor y = layer.forward(half);
    const int64_t bytes = kept.bytes();
    y.square().sum().backward();
    return std::tuple{bytes, x.grad(), layer.weight.grad};
  };
  const auto [bytes, grad_x, grad_weight] = run(false);
  const auto [recomputed_bytes, recomputed_grad_x, recomputed_grad_weight] = run(true);
  EXPECT_EQ(bytes - recomputed_bytes, 4 * 3 * 8);
  EXPECT_TRUE(at::equal(recomputed_grad_x, grad_x));
  EXPECT_TRUE(at::equal(recomputed_grad_weight, grad_weight));
}

TEST(UseCopy, GradientGoesToTheSlot) {
  Parameter scale("scale", {3});
  scale.value = at::ones({3}, at::kDouble);
  scale.trainable = true;
  (use_copy(scale) * at::full({3}, 2.0, at::kDouble)).sum().backward();
  EXPECT_TRUE(at::allclose(scale.grad, at::full({3}, 2.0, at::kDouble)));
}

}  // namespace
}  // namespace flowshard::nn
