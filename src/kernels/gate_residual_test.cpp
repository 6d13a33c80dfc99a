#include "kernels/gate_residual.h"

#include <gtest/gtest.h>

#include "kernels/finite_difference.h"

namespace flowshard::kernels {
namespace {

struct GateResidualTest : testing::Test {
  GateResidualTest() {
    at::manual_seed(0);
    x = at::randn({2, 3, 5}, at::kDouble);
    y = at::randn({2, 3, 5}, at::kDouble);
    gate = at::randn({2, 5}, at::kDouble);
  }
  at::Tensor x, y, gate;
};

TEST_F(GateResidualTest, EqualsTheFormula) {
  const at::Tensor out = gate_residual(x, y, gate);
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t l = 0; l < 3; ++l)
      for (int64_t d = 0; d < 5; ++d)
        EXPECT_DOUBLE_EQ(out[b][l][d].item<double>(),
                         x[b][l][d].item<double>() + gate[b][d].item<double>() * y[b][l][d].item<double>());
}

TEST_F(GateResidualTest, GradientsAreTheDerivatives) {
  const at::Tensor weight = at::randn(x.sizes(), at::kDouble);
  const auto loss = [&](const std::vector<at::Tensor>& in) {
    return (gate_residual(in[0], in[1], in[2]) * weight).square().sum();
  };
  EXPECT_LT(gradient_error(loss, {x, y, gate}), 1e-8);
}

TEST_F(GateResidualTest, RefusesAGateOfAnotherShapeOrDtype) {
  EXPECT_THROW(gate_residual(x, y, gate.narrow(1, 0, 4)), c10::Error);
  EXPECT_THROW(gate_residual(x, y, gate.to(at::kFloat)), c10::Error);
}

}  // namespace
}  // namespace flowshard::kernels
