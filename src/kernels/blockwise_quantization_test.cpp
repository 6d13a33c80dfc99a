#include "kernels/blockwise_quantization.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/dynamic_code.h"

namespace flowshard::kernels {
namespace {

/// The rule of the paper, literally: the middles of `parts` equal parts of [0.1, 1] for each decade. But the
/// lowest signed value is -1.
std::vector<double> paper_values(bool is_signed) {
  std::vector<double> values = {0, 1};
  for (int i = 0; i < 7; ++i) {
    const int parts = 1 << (is_signed ? i : i + 1);
    for (int j = 0; j < parts; ++j) {
      const double low = 0.1 + j * 0.9 / parts, high = 0.1 + (j + 1) * 0.9 / parts;
      const double value = std::pow(10.0, i - 6) * (low + high) / 2;
      values.push_back(value);
      if (is_signed) values.push_back(-value);
    }
  }
  std::sort(values.begin(), values.end());
  if (is_signed) values.front() = -1;
  return values;
}

template <typename Code>
void expect_nearest(const std::vector<double>& values, double lowest) {
  constexpr Code code;
  ASSERT_EQ(values.size(), 256u);
  for (int i = 0; i < 256; ++i)
    ASSERT_NEAR(code.decode(static_cast<uint8_t>(i)), values[i], 1e-7 * std::abs(values[i]));
  at::manual_seed(1);
  const at::Tensor exponents = at::rand({200'000}, at::kDouble) * -9;
  const at::Tensor random = at::pow(at::scalar_tensor(10.0, at::kDouble), exponents);
  std::vector<double> numbers(random.const_data_ptr<double>(),
                              random.const_data_ptr<double>() + random.numel());
  for (int i = 0; i + 1 < 256; ++i)
    for (const double side : {0.999, 1.001}) numbers.push_back(side * (values[i] + values[i + 1]) / 2);
  for (double number : numbers) {
    for (const double x : {number, -number}) {
      if (x < lowest) continue;
      const auto rounded = static_cast<float>(x);
      const auto above = std::lower_bound(values.begin(), values.end(), rounded);
      double distance = above == values.end() ? INFINITY : *above - rounded;
      if (above != values.begin()) distance = std::min(distance, rounded - *(above - 1));
      ASSERT_NEAR(std::abs(code.decode(code.encode(rounded)) - rounded), distance, 2e-7 * std::abs(x)) << x;
    }
  }
}

TEST(DynamicCode, HoldsTheValuesOfThePaperAndFindsTheNearest) {
  expect_nearest<SignedCode>(paper_values(true), -1);
  expect_nearest<UnsignedCode>(paper_values(false), 2e-7);
}

TEST(DynamicCode, UnsignedRoundsToZeroOnlyZero) {
  constexpr UnsignedCode code;
  EXPECT_EQ(code.encode(0), 0);
  EXPECT_EQ(code.encode(1e-30f), 1);
  EXPECT_GT(code.decode(1), 0);
}

at::Tensor round_trip(const at::Tensor& values, CodeKind kind) {
  const at::Tensor codes = at::empty(values.sizes(), at::kByte), result = at::full_like(values, NAN);
  const at::Tensor scales = at::full({num_code_blocks(values.numel())}, NAN);
  quantize_blockwise(values, codes, scales, kind);
  dequantize_blockwise(codes, scales, result, kind);
  return result;
}

TEST(BlockwiseQuantization, ScalesEachBlockByItsLargestMagnitude) {
  at::manual_seed(2);
  for (const int64_t count : {1, 255, 256, 257, 100'003}) {
    at::Tensor values = at::randn({count}) * at::pow(at::scalar_tensor(10.0), at::randn({count}));
    for (const CodeKind kind : {CodeKind::kSigned, CodeKind::kUnsigned}) {
      if (kind == CodeKind::kUnsigned) values = values.abs();
      const at::Tensor result = round_trip(values, kind);
      for (int64_t first = 0; first < count; first += 256) {
        const at::Tensor block = values.slice(0, first, std::min(count, first + 256));
        const at::Tensor got = result.slice(0, first, std::min(count, first + 256));
        const double largest = block.abs().max().item<double>();
        // Half of the widest gap of the codes: 3 / 2 * 0.9 / 64 / 2 beside -1, or 0.9 / 128 / 2.
        EXPECT_LE((got - block).abs().max().item<double>(),
                  largest * (kind == CodeKind::kSigned ? 0.01055 : 0.00352));
      }
    }
  }
}

// So that a checkpoint of decoded numbers resumes with the same codes and scales.
TEST(BlockwiseQuantization, WhatWasDecodedIsEncodedTheSame) {
  at::manual_seed(3);
  at::Tensor values = at::randn({100'003}) * at::pow(at::scalar_tensor(10.0), at::randn({100'003}));
  for (const CodeKind kind : {CodeKind::kSigned, CodeKind::kUnsigned}) {
    const at::Tensor once = round_trip(kind == CodeKind::kSigned ? values : values.abs(), kind);
    EXPECT_TRUE(at::equal(round_trip(once, kind), once));
  }
}

TEST(BlockwiseQuantization, KeepsZerosAndTheLargestOfABlock) {
  at::Tensor values = at::zeros({600});
  EXPECT_TRUE(at::equal(round_trip(values, CodeKind::kSigned), values));
  EXPECT_TRUE(at::equal(round_trip(values, CodeKind::kUnsigned), values));
  values[300] = 3e-5f;
  EXPECT_TRUE(at::equal(round_trip(values, CodeKind::kSigned), values));
  EXPECT_TRUE(at::equal(round_trip(values, CodeKind::kUnsigned), values));
}

TEST(BlockwiseQuantization, StateOfZerosIsZeroCodesAndZeroScales) {
  for (const CodeKind kind : {CodeKind::kSigned, CodeKind::kUnsigned}) {
    const at::Tensor codes = at::full({300}, zero_code(kind), at::kByte), values = at::full({300}, NAN);
    dequantize_blockwise(codes, at::zeros({2}), values, kind);
    EXPECT_TRUE(at::equal(values, at::zeros({300})));
  }
}

TEST(BlockwiseQuantization, RefusesTensorsThatDoNotFit) {
  const at::Tensor values = at::zeros({300}), codes = at::zeros({300}, at::kByte);
  EXPECT_THROW(quantize_blockwise(values, codes, at::zeros({1}), CodeKind::kSigned), c10::Error);
  EXPECT_THROW(quantize_blockwise(values, codes.slice(0, 1), at::zeros({2}), CodeKind::kSigned), c10::Error);
  EXPECT_THROW(dequantize_blockwise(values, at::zeros({2}), values, CodeKind::kSigned), c10::Error);
}

}  // namespace
}  // namespace flowshard::kernels
