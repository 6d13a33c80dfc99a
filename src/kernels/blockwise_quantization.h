// fp32 numbers as 8-bit codes with one fp32 scale for 256 of them (https://arxiv.org/abs/2110.02861), the
// form in which adamw_step() keeps moments: 1 + 4/256 bytes a number. kernels/dynamic_code.h has the formula
// of the codes. N: numbers. Thread-safe; on CUDA all work goes to the current stream.
#pragma once

#include <ATen/ATen.h>

namespace flowshard::kernels {

/// exp_avg has signs, exp_avg_sq has none.
enum class CodeKind { kSigned, kUnsigned };

/// Scales of `count` numbers: count / 256, rounded up.
int64_t num_code_blocks(int64_t count);

/// The code of zero: a state of zeros is codes filled with it, and zero scales.
uint8_t zero_code(CodeKind kind);

/// Each of values [N] fp32 becomes the nearest code of its block (the absolute maximum of the block is the
/// scale; the last block may be short) in codes [N] uint8 and scales [num_code_blocks(N)] fp32. Unsigned
/// values are not negative, and none but 0 becomes 0. Values are finite. All dense, on one device.
void quantize_blockwise(const at::Tensor& values, const at::Tensor& codes, const at::Tensor& scales,
                        CodeKind kind);

/// The inverse: writes values [N] fp32.
void dequantize_blockwise(const at::Tensor& codes, const at::Tensor& scales, const at::Tensor& values,
                          CodeKind kind);

}  // namespace flowshard::kernels
