#include <gtest/gtest.h>

#include "kernels/gate_residual.h"
#include "kernels/relative_error.h"

namespace flowshard::kernels {
namespace {

struct Shape {
  int64_t batch, tokens, channels;
};

const Shape kShapes[] = {{1, 1, 8},     {2, 7, 96},    {3, 5, 1000},    {2, 513, 4104},
                         {1, 5, 16384}, {300, 2, 128}, {1, 4608, 3072}, {4, 777, 3072}};

class GateResidualGpu : public testing::TestWithParam<std::tuple<at::ScalarType, Shape>> {
 protected:
  GateResidualGpu() : dtype(std::get<0>(GetParam())), shape(std::get<1>(GetParam())) {
    at::manual_seed(1);
    x = random({shape.batch, shape.tokens, shape.channels});
    y = random({shape.batch, shape.tokens, shape.channels});
    gate = random({shape.batch, shape.channels});
    grad = random({shape.batch, shape.tokens, shape.channels});
  }
  at::Tensor random(std::vector<int64_t> sizes) const {
    return at::randn(sizes, at::TensorOptions(at::kCUDA).dtype(at::kFloat)).to(dtype);
  }
  double tolerance() const { return dtype == at::kFloat ? 3e-6 : 3e-3; }

  void expect_exact(const at::Tensor& x_in, const at::Tensor& y_in, const at::Tensor& gate_in,
                    const at::Tensor& grad_in) const {
    std::vector<at::Tensor> wide, leaves = {x_in, y_in, gate_in};
    for (at::Tensor& leaf : leaves) {
      wide.push_back(leaf.detach().to(at::kDouble).set_requires_grad(true));
      leaf = leaf.detach().set_requires_grad(true);
    }
    const at::Tensor expected = reference::gate_residual(wide[0], wide[1], wide[2]);
    expected.backward(grad_in.to(at::kDouble));
    poison_free_memory(at::kCUDA);
    const at::Tensor out = gate_residual(leaves[0], leaves[1], leaves[2]);
    ASSERT_EQ(out.scalar_type(), dtype);
    EXPECT_LT(relative_error(out, expected), tolerance());
    out.backward(grad_in);
    EXPECT_TRUE(at::equal(leaves[0].grad(), grad_in));
    EXPECT_LT(relative_error(leaves[1].grad(), wide[1].grad()), tolerance()) << "gradient of y";
    EXPECT_LT(relative_error(leaves[2].grad(), wide[2].grad()), tolerance()) << "gradient of gate";
  }
  at::ScalarType dtype;
  Shape shape;
  at::Tensor x, y, gate, grad;
};

TEST_P(GateResidualGpu, EqualsTheReference) { expect_exact(x, y, gate, grad); }

TEST_P(GateResidualGpu, TakesStridedAndMisalignedInput) {
  const at::Tensor transposed = y.transpose(1, 2).contiguous().transpose(1, 2);
  const at::Tensor padded = at::cat({x.flatten(), x.flatten().narrow(0, 0, 1)});
  const at::Tensor misaligned = padded.narrow(0, 1, x.numel()).view(x.sizes());
  const at::Tensor wide_gate = random({shape.batch, 3 * shape.channels + 1}).narrow(1, 1, shape.channels);
  expect_exact(misaligned, transposed, wide_gate, transposed);
  expect_exact(transposed, misaligned, gate, grad.narrow(1, 0, 1).expand(grad.sizes()));
}

TEST_P(GateResidualGpu, RepeatsBitwise) {
  const auto run = [&] {
    const at::Tensor y1 = y.detach().set_requires_grad(true), gate1 = gate.detach().set_requires_grad(true);
    gate_residual(x, y1, gate1).backward(grad);
    return std::vector<at::Tensor>{y1.grad(), gate1.grad()};
  };
  const std::vector<at::Tensor> first = run(), second = run();
  EXPECT_TRUE(at::equal(first[0], second[0]));
  EXPECT_TRUE(at::equal(first[1], second[1]));
}

INSTANTIATE_TEST_SUITE_P(Shapes, GateResidualGpu,
                         testing::Combine(testing::Values(at::kFloat, at::kBFloat16),
                                          testing::ValuesIn(kShapes)));

}  // namespace
}  // namespace flowshard::kernels
