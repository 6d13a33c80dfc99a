#include <gtest/gtest.h>

#include "kernels/linear_gelu.h"
#include "kernels/relative_error.h"

namespace flowshard::kernels {
namespace {

struct Shape {
  int64_t batch, tokens, inputs, outputs;
};

const Shape kShapes[] = {{1, 1, 8, 8},          {2, 7, 96, 384},        {1, 513, 40, 24},     {3, 5, 20, 12},
                         {1, 512, 3072, 12288}, {1, 4608, 3072, 12288}, {2, 777, 3072, 12288}};

class LinearGeluGpu : public testing::TestWithParam<std::tuple<at::ScalarType, Shape>> {
 protected:
  LinearGeluGpu() : dtype(std::get<0>(GetParam())), shape(std::get<1>(GetParam())) {
    at::manual_seed(1);
    x = random({shape.batch, shape.tokens, shape.inputs});
    weight = random({shape.outputs, shape.inputs}, 1 / std::sqrt(static_cast<double>(shape.inputs)));
    bias = random({shape.outputs});
    expected = reference::linear_gelu(x.to(at::kDouble), weight.to(at::kDouble), bias.to(at::kDouble));
  }
  at::Tensor random(std::vector<int64_t> sizes, double scale = 1) const {
    return (at::randn(sizes, at::TensorOptions(at::kCUDA).dtype(at::kFloat)) * scale).to(dtype);
  }
  double tolerance() const { return dtype == at::kFloat ? 3e-5 : 5e-3; }

  at::ScalarType dtype;
  Shape shape;
  at::Tensor x, weight, bias, expected;
};

TEST_P(LinearGeluGpu, EqualsTheReference) {
  poison_free_memory(at::kCUDA);
  EXPECT_LT(relative_error(linear_gelu(x, weight, bias), expected), tolerance());
}

TEST_P(LinearGeluGpu, WritesPartsOfWiderRowsAndNothingElse) {
  const at::Tensor wide = at::full({shape.batch, shape.tokens, shape.outputs + 24}, 7.0, x.options());
  linear_gelu_out(wide.narrow(-1, 16, shape.outputs), x, weight, bias);
  EXPECT_LT(relative_error(wide.narrow(-1, 16, shape.outputs), expected), tolerance());
  EXPECT_TRUE((wide.narrow(-1, 0, 16) == 7).all().item<bool>());
  EXPECT_TRUE((wide.narrow(-1, 16 + shape.outputs, 8) == 7).all().item<bool>());
}

TEST_P(LinearGeluGpu, TakesRowsOfWiderTensorsAndMisalignedOnes) {
  const at::Tensor wide_x = random({shape.batch, shape.tokens, shape.inputs + 8});
  wide_x.narrow(-1, 8, shape.inputs).copy_(x);
  EXPECT_LT(relative_error(linear_gelu(wide_x.narrow(-1, 8, shape.inputs), weight, bias), expected),
            tolerance());
  const at::Tensor wide_bias = random({shape.outputs + 1});
  wide_bias.narrow(0, 1, shape.outputs).copy_(bias);
  EXPECT_LT(relative_error(linear_gelu(x, weight, wide_bias.narrow(0, 1, shape.outputs)), expected),
            tolerance());
}

TEST_P(LinearGeluGpu, IsBitwiseRepeatable) {
  EXPECT_TRUE(at::equal(linear_gelu(x, weight, bias), linear_gelu(x, weight, bias)));
}

INSTANTIATE_TEST_SUITE_P(Shapes, LinearGeluGpu,
                         testing::Combine(testing::Values(at::kBFloat16, at::kFloat),
                                          testing::ValuesIn(kShapes)));

}  // namespace
}  // namespace flowshard::kernels
