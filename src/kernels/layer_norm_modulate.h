// Layer normalisation without affine parameters, scaled and shifted by the conditioning vector.
// B: batch, L: tokens, D: channels. Thread-safe; on CUDA all work goes to the current stream of x's device.
#pragma once

#include <ATen/ATen.h>

namespace flowshard::kernels {

/// LN(x) * (1 + scale) + shift for x [B, L, D] and shift, scale [B, D], all of one dtype; the mean and
/// variance are those of the last dimension. Returns [B, L, D]. Differentiable in all three tensors. On CUDA
/// (bf16, fp32; D a multiple of 8, at most 16384) one kernel with fp32 arithmetic that rounds once and keeps
/// x and two fp32 numbers a token for backward; its gradients are bitwise repeatable. Elsewhere
/// reference::layer_norm_modulate.
at::Tensor layer_norm_modulate(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale,
                               double eps = 1e-6);

namespace reference {
/// The same as a composition of ATen operations, each rounding to the dtype of x. Any dtype and device.
at::Tensor layer_norm_modulate(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale,
                               double eps = 1e-6);
}  // namespace reference

}  // namespace flowshard::kernels
