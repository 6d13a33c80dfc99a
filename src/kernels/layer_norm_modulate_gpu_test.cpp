#include <gtest/gtest.h>

#include "kernels/layer_norm_modulate.h"
#include "kernels/relative_error.h"

namespace flowshard::kernels {
namespace {

struct Shape {
  int64_t batch, tokens, channels;
};

// Odd counts, one row, rows of one, two and four packs a thread, more batch entries than gradient blocks.
const Shape kShapes[] = {{1, 1, 8},      {2, 7, 96},      {3, 5, 1000},   {1, 33, 3072},
                         {2, 513, 4104}, {2, 3, 8192},    {1, 300, 6000}, {1, 5, 16384},
                         {300, 2, 128},  {1, 4608, 3072}, {4, 777, 3072}};

class LayerNormModulateGpu : public testing::TestWithParam<std::tuple<at::ScalarType, Shape>> {
 protected:
  LayerNormModulateGpu() : dtype(std::get<0>(GetParam())), shape(std::get<1>(GetParam())) {
    at::manual_seed(1);
    x = random({shape.batch, shape.tokens, shape.channels}) * 2 + 0.5;
    shift = random({shape.batch, shape.channels});
    scale = random({shape.batch, shape.channels});
    grad = random({shape.batch, shape.tokens, shape.channels});
  }
  at::Tensor random(std::vector<int64_t> sizes) const {
    return at::randn(sizes, at::TensorOptions(at::kCUDA).dtype(at::kFloat)).to(dtype);
  }
  double tolerance() const { return dtype == at::kFloat ? 3e-6 : 3e-3; }

  /// Compares with fp64 for the inputs as they lie in memory.
  void expect_exact(const at::Tensor& x_in, const at::Tensor& shift_in, const at::Tensor& scale_in,
                    const at::Tensor& grad_in) const {
    std::vector<at::Tensor> wide, leaves = {x_in, shift_in, scale_in};
    for (at::Tensor& leaf : leaves) {
      wide.push_back(leaf.detach().to(at::kDouble).set_requires_grad(true));
      leaf = leaf.detach().set_requires_grad(true);
    }
    const at::Tensor expected = reference::layer_norm_modulate(wide[0], wide[1], wide[2]);
    expected.backward(grad_in.to(at::kDouble));
    poison_free_memory(at::kCUDA);
    const at::Tensor y = layer_norm_modulate(leaves[0], leaves[1], leaves[2]);
    ASSERT_EQ(y.scalar_type(), dtype);
    EXPECT_LT(relative_error(y, expected), tolerance());
    y.backward(grad_in);
    const char* names[] = {"x", "shift", "scale"};
    for (int i = 0; i < 3; ++i)
      EXPECT_LT(relative_error(leaves[i].grad(), wide[i].grad()), tolerance()) << "gradient of " << names[i];
  }
  at::ScalarType dtype;
  Shape shape;
  at::Tensor x, shift, scale, grad;
};

TEST_P(LayerNormModulateGpu, EqualsTheReference) { expect_exact(x, shift, scale, grad); }

TEST_P(LayerNormModulateGpu, TakesStridedAndMisalignedInput) {
  const at::Tensor transposed = x.transpose(1, 2).contiguous().transpose(1, 2);
  const std::vector<at::Tensor> chunks =
      random({shape.batch, 3 * shape.channels + 1}).split(shape.channels, 1);
  const at::Tensor padded = at::cat({grad.flatten(), grad.flatten().narrow(0, 0, 1)});
  const at::Tensor misaligned = padded.narrow(0, 1, grad.numel()).view(grad.sizes());
  expect_exact(transposed, chunks[0], chunks[2], misaligned);
  expect_exact(misaligned, chunks[1], scale, transposed);
}

TEST_P(LayerNormModulateGpu, RepeatsBitwiseAndWithoutGradientsGivesTheSame) {
  const auto run = [&] {
    const at::Tensor x1 = x.detach().set_requires_grad(true);
    const at::Tensor scale1 = scale.detach().set_requires_grad(true);
    const at::Tensor y = layer_norm_modulate(x1, shift, scale1);
    y.backward(grad);
    return std::vector<at::Tensor>{y.detach(), x1.grad(), scale1.grad()};
  };
  const std::vector<at::Tensor> first = run(), second = run();
  for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(at::equal(first[i], second[i])) << i;
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(at::equal(layer_norm_modulate(x, shift, scale), first[0]));
}

INSTANTIATE_TEST_SUITE_P(Shapes, LayerNormModulateGpu,
                         testing::Combine(testing::Values(at::kFloat, at::kBFloat16),
                                          testing::ValuesIn(kShapes)));

TEST(LayerNormModulateGpuEdge, OneRowOfABatchDoesNotDependOnTheOthers) {
  at::manual_seed(2);
  const at::TensorOptions options = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
  const at::Tensor x = at::randn({3, 50, 3072}, options), shift = at::randn({3, 3072}, options);
  const at::Tensor scale = at::randn({3, 3072}, options);
  const at::Tensor together = layer_norm_modulate(x, shift, scale);
  const at::Tensor alone =
      layer_norm_modulate(x.narrow(0, 1, 1), shift.narrow(0, 1, 1), scale.narrow(0, 1, 1));
  EXPECT_TRUE(at::equal(alone[0], together[1]));
}

TEST(LayerNormModulateGpuEdge, UncoveredShapesTakeTheReference) {
  const at::TensorOptions options(at::kCUDA);
  for (const auto& [tokens, channels] : std::vector<std::pair<int64_t, int64_t>>{{3, 7}, {0, 8}}) {
    const at::Tensor x = at::randn({2, tokens, channels}, options), v = at::randn({2, channels}, options);
    EXPECT_TRUE(at::equal(layer_norm_modulate(x, v, v), reference::layer_norm_modulate(x, v, v)));
  }
}

}  // namespace
}  // namespace flowshard::kernels
