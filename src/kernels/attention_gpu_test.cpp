#include <gtest/gtest.h>

#include "kernels/attention.h"
#include "kernels/relative_error.h"

namespace flowshard::kernels {
namespace {

struct Shape {
  int64_t batch, heads, length, head_dim;
};

// The quickstart model, odd lengths and single heads, FLUX at 256, 512 and 1024 pixels.
const Shape kShapes[] = {{2, 4, 28, 24},    {1, 1, 77, 64},     {3, 2, 333, 128},
                         {1, 24, 768, 128}, {2, 24, 1536, 128}, {1, 24, 4608, 128}};

enum class Layout { kHeadsFirst, kTokensFirst, kPacked };

class AttentionGpu : public testing::TestWithParam<std::tuple<Shape, Layout, Layout>> {
 protected:
  AttentionGpu() : shape(std::get<0>(GetParam())) { at::manual_seed(1); }

  at::Tensor random(std::vector<int64_t> sizes) const {
    return at::randn(sizes, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
  }
  /// Three tensors [B, H, L, Dh].
  std::vector<at::Tensor> three(Layout layout) const {
    const auto& [batch, heads, length, head_dim] = shape;
    std::vector<at::Tensor> out;
    const at::Tensor packed = random({batch, length, 3, heads, head_dim});
    for (int64_t i = 0; i < 3; ++i) {
      const at::Tensor tokens_first = packed.select(2, i);  // [B, L, H, Dh]
      out.push_back((layout == Layout::kPacked ? tokens_first : tokens_first.contiguous()).transpose(1, 2));
      if (layout == Layout::kHeadsFirst) out.back() = out.back().contiguous();
    }
    return out;
  }
  Shape shape;
};

TEST_P(AttentionGpu, OutputAndAllGradientsEqualFp32) {
  std::vector<at::Tensor> leaves = three(std::get<1>(GetParam())), wide;
  const at::Tensor grad = three(std::get<2>(GetParam()))[0];
  for (at::Tensor& leaf : leaves) {
    wide.push_back(leaf.to(at::kFloat).set_requires_grad(true));
    leaf = leaf.detach().set_requires_grad(true);
  }
  const double scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
  const at::Tensor expected =
      at::matmul(at::softmax(at::matmul(wide[0], wide[1].transpose(2, 3)) * scale, -1), wide[2]);
  expected.backward(grad.to(at::kFloat));

  const at::Tensor out = attention(leaves[0], leaves[1], leaves[2]);
  EXPECT_LT(relative_error(out, expected), 5e-3);
  out.backward(grad);
  const char* names[] = {"q", "k", "v"};
  for (int i = 0; i < 3; ++i)
    EXPECT_LT(relative_error(leaves[i].grad(), wide[i].grad()), 1e-2) << "gradient of " << names[i];
}

INSTANTIATE_TEST_SUITE_P(Layouts, AttentionGpu,
                         testing::Combine(testing::ValuesIn(kShapes),
                                          testing::Values(Layout::kHeadsFirst, Layout::kTokensFirst,
                                                          Layout::kPacked),
                                          testing::Values(Layout::kHeadsFirst, Layout::kTokensFirst)));

// Gradients as the model's own operations make them: through the merge of heads, and of a plain sum.
TEST(AttentionGpuEdge, GradientsThroughMergedHeadsAndSums) {
  at::manual_seed(3);
  const at::TensorOptions options = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
  const at::Tensor q = at::randn({1, 60, 4, 64}, options).transpose(1, 2).set_requires_grad(true);
  const at::Tensor wide = q.detach().to(at::kFloat).set_requires_grad(true);
  const at::Tensor weight = at::randn({1, 60, 256}, options);
  const auto merged = [](const at::Tensor& x) { return attention(x, x, x).transpose(1, 2).flatten(2); };
  (merged(q) * weight).sum().backward();
  (merged(wide) * weight).sum().backward();
  EXPECT_LT(relative_error(q.grad(), wide.grad()), 1e-2);

  const at::Tensor v = at::randn({1, 4, 60, 64}, options).set_requires_grad(true);
  const at::Tensor wide_v = v.detach().to(at::kFloat).set_requires_grad(true);
  attention(q.detach(), q.detach(), v).sum().backward();
  attention(wide.detach(), wide.detach(), wide_v).sum().backward();
  EXPECT_LT(relative_error(v.grad(), wide_v.grad()), 1e-2);
}

// What cuDNN does not take: heads that are no multiple of 8 or longer than 128, one key, odd strides, fp32.
TEST(AttentionGpuEdge, EveryOtherInputHasAWay) {
  at::manual_seed(4);
  struct Case {
    at::ScalarType type;
    std::vector<int64_t> shape;
  };
  for (const Case& test : std::vector<Case>{{at::kBFloat16, {2, 3, 9, 20}},
                                            {at::kBFloat16, {1, 2, 40, 160}},
                                            {at::kBFloat16, {2, 2, 1, 64}},
                                            {at::kFloat, {2, 3, 50, 24}}}) {
    const at::Tensor q = at::randn(test.shape, at::TensorOptions(at::kCUDA).dtype(test.type));
    const at::Tensor leaf = q.clone().set_requires_grad(true);
    const at::Tensor wide = q.cpu().to(at::kDouble).set_requires_grad(true);
    attention(leaf, leaf, leaf).square().sum().backward();
    attention(wide, wide, wide).square().sum().backward();
    EXPECT_LT(relative_error(leaf.grad().cpu(), wide.grad()), 2e-2) << at::IntArrayRef(test.shape);
  }
  const at::Tensor odd =
      at::randn({2, 3, 9, 33}, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16)).narrow(3, 1, 32);
  EXPECT_LT(relative_error(
                attention(odd, odd, odd).cpu(),
                attention(odd.cpu().to(at::kDouble), odd.cpu().to(at::kDouble), odd.cpu().to(at::kDouble))),
            1e-2);
}

/// Output and gradients of q, k and v, twice from the same inputs: which of the four are not bitwise the
/// same.
std::vector<std::string> what_differs_between_runs() {
  at::manual_seed(5);
  const at::TensorOptions options = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
  const at::Tensor qkv = at::randn({1, 1536, 3, 24, 128}, options);
  const at::Tensor grad = at::randn({1, 24, 1536, 128}, options);
  const auto run = [&] {
    std::vector<at::Tensor> leaves;
    for (int64_t i = 0; i < 3; ++i)
      leaves.push_back(qkv.select(2, i).contiguous().transpose(1, 2).set_requires_grad(true));
    const at::Tensor out = attention(leaves[0], leaves[1], leaves[2]);
    out.backward(grad);
    return std::vector<at::Tensor>{out.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
  };
  const std::vector<at::Tensor> first = run(), second = run();
  const char* names[] = {"out", "q", "k", "v"};
  std::vector<std::string> differing;
  for (size_t i = 0; i < 4; ++i)
    if (!at::equal(first[i], second[i])) differing.push_back(names[i]);
  return differing;
}

TEST(AttentionGpuEdge, OnlyTheGradientOfQMayDifferBetweenRuns) {
  for (const std::string& name : what_differs_between_runs()) EXPECT_EQ(name, "q");
}

TEST(AttentionGpuEdge, RepeatsBitwiseWithDeterministicAlgorithms) {
  at::globalContext().setDeterministicAlgorithms(true, false);
  const std::vector<std::string> differing = what_differs_between_runs();
  at::globalContext().setDeterministicAlgorithms(false, false);
  EXPECT_EQ(differing, std::vector<std::string>{});
}

// What a selective block does at FLUX's width: two streams, a batch, gradients in the layout of merged heads.
TEST(AttentionOfStreamsGpu, GradientsEqualThoseOfTheTwoOperations) {
  at::manual_seed(1);
  const at::TensorOptions options = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
  std::vector<at::Tensor> inputs;
  for (const int64_t length : {128, 256}) {
    inputs.push_back(at::randn({2, length, 3, 24, 128}, options));
    inputs.push_back(at::rand({128}, options) + 0.5);
    inputs.push_back(at::rand({128}, options) + 0.5);
  }
  const at::Tensor angles = at::rand({384, 64}, options.dtype(at::kFloat));
  const at::Tensor weight = at::randn({2, 384, 24 * 128}, options);
  const auto run = [&](bool recompute) {
    std::vector<at::Tensor> leaves;
    for (const at::Tensor& input : inputs) leaves.push_back(input.detach().clone().set_requires_grad(true));
    const std::vector<QkvStream> streams = {{leaves[0], leaves[1], leaves[2]},
                                            {leaves[3], leaves[4], leaves[5]}};
    const JointQkv joint = qk_norm_rope(streams, angles.cos(), angles.sin());
    const at::Tensor out = recompute ? attention_of_streams(streams, angles.cos(), angles.sin())
                                     : attention(joint.q, joint.k, joint.v);
    (out.transpose(1, 2).flatten(2) * weight).sum().backward();
    std::vector<at::Tensor> result = {out.detach()};
    for (const at::Tensor& leaf : leaves) result.push_back(leaf.grad());
    return result;
  };
  const std::vector<at::Tensor> actual = run(true), expected = run(false);
  EXPECT_TRUE(at::equal(actual[0], expected[0]));
  // cuDNN's gradient of q is not bitwise repeatable.
  for (size_t i = 1; i < actual.size(); ++i) EXPECT_LT(relative_error(actual[i], expected[i]), 2e-3) << i;
}

}  // namespace
}  // namespace flowshard::kernels
