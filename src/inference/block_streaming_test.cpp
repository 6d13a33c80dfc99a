#include "inference/block_streaming.h"

#include <gtest/gtest.h>

#include <deque>

namespace flowshard::inference {
namespace {

/// Blocks of different sizes; block i multiplies by its weight, which is i + 2 everywhere.
struct StreamingRunnerTest : testing::TestWithParam<std::tuple<int, int>> {
  StreamingRunnerTest() {
    for (int i = 0; i < num_blocks(); ++i) {
      parameters.emplace_back("block." + std::to_string(i), std::vector<int64_t>{3 + i, 2});
      groups.push_back({"block." + std::to_string(i), {&parameters.back()}});
    }
    for (nn::ParameterGroup& group : groups) {
      blocks.push_back(&group);
      parts.push_back({&group, group.parameters});
    }
  }
  int num_blocks() const { return std::get<0>(GetParam()); }

  double run_from(StreamingRunner& runner, int first) {
    at::Tensor x = at::ones({1});
    for (int i = first; i < num_blocks(); ++i) {
      x = runner.run(*blocks[i],
                     [&](const nn::Tensors& in) { return nn::Tensors{in[0] * parameters[i].value.mean()}; },
                     {x})[0];
    }
    return x.item<double>();
  }

  std::deque<nn::Parameter> parameters;
  std::deque<nn::ParameterGroup> groups;
  std::vector<nn::ParameterGroup*> blocks;
  std::vector<BlockPart> parts;
};

TEST_P(StreamingRunnerTest, EveryPassSeesEveryBlocksWeights) {
  const size_t num_resident = std::min(std::get<1>(GetParam()), num_blocks());
  StreamingRunner runner(parts, num_resident, at::kFloat);
  double product = 1;
  for (int i = 0; i < num_blocks(); ++i) {
    parameters[i].value.fill_(i + 2);
    product *= i + 2;
  }
  runner.start();
  for (int pass = 0; pass < 3; ++pass) EXPECT_EQ(run_from(runner, 0), product);
  runner.release_buffers();
  EXPECT_EQ(run_from(runner, 0), product);
  // A pass that ended early, and one that begins in the middle.
  runner.run(*blocks[0], [](const nn::Tensors& in) { return in; }, {at::ones({1})});
  EXPECT_EQ(run_from(runner, 0), product);
  EXPECT_EQ(run_from(runner, num_blocks() / 2) * 1.0, [&] {
    double rest = 1;
    for (int i = num_blocks() / 2; i < num_blocks(); ++i) rest *= i + 2;
    return rest;
  }());
  size_t num_materialized = 0;
  for (const nn::Parameter& parameter : parameters) num_materialized += parameter.value.defined();
  EXPECT_EQ(num_materialized, num_resident);
}

INSTANTIATE_TEST_SUITE_P(Sizes, StreamingRunnerTest,
                         testing::Combine(testing::Values(1, 2, 3, 7), testing::Values(0, 1, 3, 7)));

}  // namespace
}  // namespace flowshard::inference
