#include "kernels/blockwise_quantization.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "kernels/device.h"
#include "kernels/dynamic_code.h"

namespace flowshard::kernels {
namespace {

constexpr SignedCode kSignedCode;
constexpr UnsignedCode kUnsignedCode;
constexpr int64_t kBlocksOfThread = 64;  // at least, where threads share the blocks

void check_arguments(const at::Tensor& values, const at::Tensor& codes, const at::Tensor& scales) {
  TORCH_CHECK(values.scalar_type() == at::kFloat && codes.scalar_type() == at::kByte &&
                  scales.scalar_type() == at::kFloat,
              "blockwise quantization: values and scales must be fp32 and codes uint8, got ",
              values.scalar_type(), ", ", scales.scalar_type(), " and ", codes.scalar_type());
  TORCH_CHECK(values.dim() == 1 && codes.sizes() == values.sizes() && scales.dim() == 1 &&
                  scales.numel() == num_code_blocks(values.numel()),
              "blockwise quantization: values ", values.sizes(), " need as many codes, got ", codes.sizes(),
              ", and a scale for 256, got ", scales.sizes());
  TORCH_CHECK(values.is_contiguous() && codes.is_contiguous() && scales.is_contiguous(),
              "blockwise quantization: every tensor must be dense");
  TORCH_CHECK(codes.device() == values.device() && scales.device() == values.device(),
              "blockwise quantization: values are on ", values.device(), ", codes on ", codes.device(),
              ", scales on ", scales.device());
  TORCH_CHECK(values.is_cpu() || cuda::takes(values), "blockwise quantization: no kernel for ",
              values.device());
}

/// Calls function(block, first, end) for every block.
template <typename Function>
void for_each_block(int64_t count, const Function& function) {
  at::parallel_for(0, num_code_blocks(count), kBlocksOfThread, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block)
      function(block, block * kCodeBlock, std::min(count, (block + 1) * kCodeBlock));
  });
}

template <typename Code>
void quantize_on_cpu(const Code& code, const float* values, uint8_t* codes, float* scales, int64_t count) {
  for_each_block(count, [&](int64_t block, int64_t first, int64_t end) {
    float largest = 0;
    for (int64_t i = first; i < end; ++i) largest = std::max(largest, std::abs(values[i]));
    const float inverse = inverse_scale(largest);
    for (int64_t i = first; i < end; ++i) codes[i] = code.encode(values[i] * inverse);
    scales[block] = largest;
  });
}

template <typename Code>
void dequantize_on_cpu(const Code& code, const uint8_t* codes, const float* scales, float* values,
                       int64_t count) {
  for_each_block(count, [&](int64_t block, int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) values[i] = code.decode(codes[i]) * scales[block];
  });
}

}  // namespace

int64_t num_code_blocks(int64_t count) { return (count + kCodeBlock - 1) / kCodeBlock; }

uint8_t zero_code(CodeKind kind) {
  return kind == CodeKind::kSigned ? SignedCode::kZero : UnsignedCode::kZero;
}

void quantize_blockwise(const at::Tensor& values, const at::Tensor& codes, const at::Tensor& scales,
                        CodeKind kind) {
  check_arguments(values, codes, scales);
  const auto* from = values.const_data_ptr<float>();
  auto* to = codes.mutable_data_ptr<uint8_t>();
  auto* to_scales = scales.mutable_data_ptr<float>();
  const bool is_signed = kind == CodeKind::kSigned;
  if (values.is_cuda()) {
    cuda::run(cuda::QuantizeBlockwise{from, to, to_scales, values.numel(), is_signed}, values.device());
  } else if (is_signed) {
    quantize_on_cpu(kSignedCode, from, to, to_scales, values.numel());
  } else {
    quantize_on_cpu(kUnsignedCode, from, to, to_scales, values.numel());
  }
}

void dequantize_blockwise(const at::Tensor& codes, const at::Tensor& scales, const at::Tensor& values,
                          CodeKind kind) {
  check_arguments(values, codes, scales);
  const auto* from = codes.const_data_ptr<uint8_t>();
  const auto* from_scales = scales.const_data_ptr<float>();
  auto* to = values.mutable_data_ptr<float>();
  const bool is_signed = kind == CodeKind::kSigned;
  if (values.is_cuda()) {
    cuda::run(cuda::DequantizeBlockwise{from, from_scales, to, values.numel(), is_signed}, values.device());
  } else if (is_signed) {
    dequantize_on_cpu(kSignedCode, from, from_scales, to, values.numel());
  } else {
    dequantize_on_cpu(kUnsignedCode, from, from_scales, to, values.numel());
  }
}

}  // namespace flowshard::kernels
