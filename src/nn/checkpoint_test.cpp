#include "nn/checkpoint.h"

#include <gtest/gtest.h>

#include "nn/linear.h"

namespace flowshard::nn {
namespace {

/// x + second(tanh(first(x))) * use_copy(scale), and the input that has no weight: two outputs.
struct Block {
  Block() : first(group, "first", 5, 7), second(group, "second", 7, 5), scale("scale", {5}) {
    group.parameters.push_back(&scale);
    at::manual_seed(0);
    for (Parameter* parameter : group.parameters) {
      parameter->value = at::randn(parameter->shape);
      parameter->trainable = true;
    }
  }
  BlockFunction function() {
    return [this](const Tensors& in) {
      ++num_calls;
      const at::Tensor y = second.forward(at::tanh(first.forward(in[0]))) * use_copy(scale);
      return Tensors{in[0] + y, in[1] * y};
    };
  }
  std::vector<at::Tensor> gradients(BlockRunner& runner, const Tensors& inputs) {
    for (Parameter* parameter : group.parameters) parameter->grad = at::Tensor();
    Tensors leaves;
    for (const at::Tensor& input : inputs)
      leaves.push_back(input.detach().clone().set_requires_grad(input.requires_grad()));
    const Tensors outputs = runner.run(group, function(), leaves);
    (outputs[0].square().sum() + outputs[1].sum()).backward();
    std::vector<at::Tensor> result;
    for (const at::Tensor& leaf : leaves) result.push_back(leaf.grad());
    for (const Parameter* parameter : group.parameters) result.push_back(parameter->grad);
    return result;
  }
  ParameterGroup group{"block", {}};
  Linear first, second;
  Parameter scale;
  int num_calls = 0;
};

void expect_same(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(actual[i].defined(), expected[i].defined()) << i;
    if (!actual[i].defined()) continue;
    EXPECT_TRUE(at::equal(actual[i], expected[i])) << i;
  }
}

struct CheckpointTest : testing::Test {
  CheckpointTest() : checkpointing(direct) {}
  void expect_same_gradients(const Tensors& inputs) {
    expect_same(block.gradients(checkpointing, inputs), block.gradients(direct, inputs));
  }
  Block block;
  DirectRunner direct;
  CheckpointingRunner checkpointing;
  at::Tensor x = at::randn({2, 3, 5}), z = at::randn({2, 3, 5});
};

TEST_F(CheckpointTest, GradientsAreBitwiseThoseOfTheBlock) {
  x.set_requires_grad(true);
  z.set_requires_grad(true);
  expect_same_gradients({x, z});
  EXPECT_EQ(block.num_calls, 3);  // forward twice with checkpointing
}

TEST_F(CheckpointTest, GradientsAreBitwiseThoseOfTheBlockWhereInputsNeedNone) {
  expect_same_gradients({x, z});
  z.set_requires_grad(true);
  expect_same_gradients({x, z});
}

TEST_F(CheckpointTest, GradientsAreBitwiseThoseOfTheBlockWithFrozenParameters) {
  block.first.weight.trainable = block.second.bias->trainable = block.scale.trainable = false;
  expect_same_gradients({x, z});
  for (Parameter* parameter : block.group.parameters) parameter->trainable = false;
  x.set_requires_grad(true);
  expect_same_gradients({x, z});
}

TEST_F(CheckpointTest, WhereNothingIsTrainedNothingIsRecorded) {
  for (Parameter* parameter : block.group.parameters) parameter->trainable = false;
  EXPECT_FALSE(checkpointing.run(block.group, block.function(), {x, z})[0].requires_grad());
}

TEST_F(CheckpointTest, WithoutGradientsTheBlockRunsOnce) {
  const at::NoGradGuard no_grad;
  const Tensors outputs = checkpointing.run(block.group, block.function(), {x, z});
  EXPECT_TRUE(at::equal(outputs[0], direct.run(block.group, block.function(), {x, z})[0]));
  EXPECT_EQ(block.num_calls, 2);
}

TEST_F(CheckpointTest, GradientsOfSeveralPassesAddUp) {
  x.set_requires_grad(true);
  const auto twice = [&](BlockRunner& runner) {
    for (Parameter* parameter : block.group.parameters) parameter->grad = at::Tensor();
    for (int pass = 0; pass < 2; ++pass)
      runner.run(block.group, block.function(), {x, z})[0].square().sum().backward();
    std::vector<at::Tensor> result;
    for (const Parameter* parameter : block.group.parameters) result.push_back(parameter->grad);
    return result;
  };
  expect_same(twice(checkpointing), twice(direct));
}

}  // namespace
}  // namespace flowshard::nn
