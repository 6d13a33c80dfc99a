#include <gtest/gtest.h>

#include "kernels/adamw.h"
#include "kernels/blockwise_quantization.h"
#include "kernels/relative_error.h"

namespace flowshard::kernels {
namespace {

struct Case {
  at::ScalarType param, grad;
  bool codes;
};

/// A tensor of the same values, `offset` elements behind an aligned address.
at::Tensor at_offset(const at::Tensor& values, int64_t offset) {
  if (!values.defined()) return values;
  const at::Tensor storage = at::zeros({values.numel() + offset}, values.options().device(at::kCUDA));
  at::Tensor result = storage.slice(0, offset);
  result.copy_(values);
  return result;
}

class AdamWGpu : public testing::TestWithParam<std::tuple<Case, int64_t, int64_t>> {
 protected:
  AdamWGpu()
      : kind(std::get<0>(GetParam())), count(std::get<1>(GetParam())), offset(std::get<2>(GetParam())) {
    at::manual_seed(count);
  }

  /// Moments of a few steps gone by, in the form of the case; the parameter and the gradient as given.
  AdamWTensors on_cpu(const at::Tensor& param, const at::Tensor& grad, const at::Tensor& exp_avg,
                      const at::Tensor& exp_avg_sq) const {
    AdamWTensors tensors{.param = param.to(kind.param), .grad = grad.to(kind.grad)};
    tensors.exp_avg = exp_avg.clone();
    tensors.exp_avg_sq = exp_avg_sq.clone();
    if (!kind.codes) return tensors;
    tensors.exp_avg = at::empty({count}, at::kByte);
    tensors.exp_avg_sq = at::empty({count}, at::kByte);
    tensors.exp_avg_scale = at::empty({num_code_blocks(count)});
    tensors.exp_avg_sq_scale = at::empty({num_code_blocks(count)});
    quantize_blockwise(exp_avg, tensors.exp_avg, tensors.exp_avg_scale, CodeKind::kSigned);
    quantize_blockwise(exp_avg_sq, tensors.exp_avg_sq, tensors.exp_avg_sq_scale, CodeKind::kUnsigned);
    return tensors;
  }

  AdamWTensors on_gpu(const AdamWTensors& tensors) const {
    return {at_offset(tensors.param, offset),         at_offset(tensors.grad, offset),
            at_offset(tensors.exp_avg, offset),       at_offset(tensors.exp_avg_sq, offset),
            at_offset(tensors.exp_avg_scale, offset), at_offset(tensors.exp_avg_sq_scale, offset)};
  }

  const Case kind;
  const int64_t count, offset;
};

/// Two moments as fp32 on the CPU.
std::pair<at::Tensor, at::Tensor> moments(const AdamWTensors& tensors) {
  if (tensors.exp_avg.scalar_type() == at::kFloat) return {tensors.exp_avg.cpu(), tensors.exp_avg_sq.cpu()};
  const at::Tensor exp_avg = at::empty(tensors.exp_avg.sizes(), tensors.exp_avg.options().dtype(at::kFloat));
  const at::Tensor exp_avg_sq = at::empty_like(exp_avg);
  dequantize_blockwise(tensors.exp_avg, tensors.exp_avg_scale, exp_avg, CodeKind::kSigned);
  dequantize_blockwise(tensors.exp_avg_sq, tensors.exp_avg_sq_scale, exp_avg_sq, CodeKind::kUnsigned);
  return {exp_avg.cpu(), exp_avg_sq.cpu()};
}

TEST_P(AdamWGpu, FollowsTheCpuOverSteps) {
  AdamWTensors expected =
      on_cpu(at::randn({count}), at::randn({count}), at::randn({count}), at::rand({count}) + 0.1);
  AdamWTensors tensors = on_gpu(expected);
  AdamWOptions options{
      .lr = 1e-3, .weight_decay = 0.01, .grad_scale = 0.7, .seed = 11, .first_element = 12'345'678'901};
  for (options.step = 3; options.step <= 6; ++options.step) {
    expected.grad = at::randn({count}).to(kind.grad);
    tensors.grad.copy_(expected.grad);
    adamw_step(expected, options);
    adamw_step(tensors, options);
  }
  // A number at the middle between two codes, or one at which the random bits tip, may fall to the other
  // side.
  const auto [exp_avg, exp_avg_sq] = moments(tensors);
  const auto [expected_exp_avg, expected_exp_avg_sq] = moments(expected);
  const double one = count == 1 ? 10 : 1;  // nothing evens out
  EXPECT_LT(relative_error(tensors.param.cpu(), expected.param),
            one * (kind.param == at::kFloat ? 3e-6 : 1e-3));
  EXPECT_LT(relative_error(exp_avg, expected_exp_avg), one * (kind.codes ? 1e-3 : 1e-6));
  EXPECT_LT(relative_error(exp_avg_sq, expected_exp_avg_sq), one * (kind.codes ? 1e-3 : 1e-6));
}

// Small whole numbers and powers of two: no operation rounds before the last, so CPU and GPU must agree bit
// by bit.
TEST_P(AdamWGpu, RoundsToTheBitsOfTheCpu) {
  const auto whole = [&](int64_t low, int64_t high) {
    return at::randint(low, high, {count}).to(at::kFloat);
  };
  AdamWTensors expected = on_cpu(whole(-128, 128), at::zeros({count}), whole(-8, 8), whole(0, 1));
  AdamWTensors tensors = on_gpu(expected);
  // exp_avg_sq stays 0, eps is infinite: the parameter changes by the decay alone.
  const AdamWOptions decay{.lr = 1,
                           .beta1 = 0.5,
                           .beta2 = 0.5,
                           .eps = std::numeric_limits<double>::infinity(),
                           .weight_decay = 0x1p-10,
                           .seed = 5,
                           .first_element = 4'294'967'291};
  adamw_step(expected, decay);
  adamw_step(tensors, decay);
  EXPECT_TRUE(at::equal(tensors.param.cpu(), expected.param));

  expected.grad.copy_(whole(-8, 8));
  tensors.grad.copy_(expected.grad);
  const AdamWOptions moment{.lr = 0, .beta1 = 0.5, .beta2 = 0.5, .grad_scale = 2};
  adamw_step(expected, moment);
  adamw_step(tensors, moment);
  EXPECT_TRUE(at::equal(tensors.exp_avg_sq.cpu(), expected.exp_avg_sq));
  if (kind.codes) {
    EXPECT_TRUE(at::equal(tensors.exp_avg_sq_scale.cpu(), expected.exp_avg_sq_scale));
  } else {
    EXPECT_TRUE(at::equal(tensors.exp_avg.cpu(), expected.exp_avg));
  }
}

TEST_P(AdamWGpu, TouchesNothingBesideTheShard) {
  if (offset == 0) return;
  AdamWTensors tensors =
      on_gpu(on_cpu(at::ones({count}), at::ones({count}), at::ones({count}), at::ones({count})));
  adamw_step(tensors, {.lr = 0.1});
  for (const at::Tensor& tensor : {tensors.param, tensors.exp_avg, tensors.exp_avg_sq}) {
    const at::Tensor before = at::empty({0}, tensor.options()).set_(tensor.storage(), 0, {offset}, {1});
    EXPECT_TRUE(at::equal(before, at::zeros_like(before)));
  }
}

INSTANTIATE_TEST_SUITE_P(Shards, AdamWGpu,
                         testing::Combine(testing::Values(Case{at::kFloat, at::kFloat, false},
                                                          Case{at::kFloat, at::kBFloat16, false},
                                                          Case{at::kBFloat16, at::kFloat, false},
                                                          Case{at::kBFloat16, at::kBFloat16, true},
                                                          Case{at::kFloat, at::kFloat, true},
                                                          Case{at::kFloat, at::kBFloat16, true}),
                                          testing::Values(1, 255, 256, 257, 1'000'003),
                                          testing::Values(0, 1, 4)));

TEST(BlockwiseQuantizationGpu, EqualsTheCpu) {
  at::manual_seed(6);
  for (const int64_t count : {1, 255, 257, 1'000'003}) {
    for (const CodeKind kind : {CodeKind::kSigned, CodeKind::kUnsigned}) {
      at::Tensor values = at::randn({count}) * at::pow(at::scalar_tensor(10.0), at::randn({count}) * 2);
      if (kind == CodeKind::kUnsigned) values = values.abs();
      const at::Tensor codes = at::empty({count}, at::kByte), scales = at::empty({num_code_blocks(count)});
      quantize_blockwise(values, codes, scales, kind);
      const at::Tensor gpu_codes = at::empty_like(codes, at::kCUDA),
                       gpu_scales = at::empty_like(scales, at::kCUDA);
      quantize_blockwise(values.cuda(), gpu_codes, gpu_scales, kind);
      EXPECT_TRUE(at::equal(gpu_codes.cpu(), codes));
      EXPECT_TRUE(at::equal(gpu_scales.cpu(), scales));
      const at::Tensor back = at::empty_like(values), gpu_back = at::empty_like(values, at::kCUDA);
      dequantize_blockwise(codes, scales, back, kind);
      dequantize_blockwise(gpu_codes, gpu_scales, gpu_back, kind);
      EXPECT_TRUE(at::equal(gpu_back.cpu(), back));
    }
  }
}

}  // namespace
}  // namespace flowshard::kernels
