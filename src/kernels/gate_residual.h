// The residual connection behind a gate from the conditioning vector.
// B: batch, L: tokens, D: channels. Thread-safe; on CUDA all work goes to the current stream of x's device.
#pragma once

#include <ATen/ATen.h>

namespace flowshard::kernels {

/// x + gate * y for x, y [B, L, D] and gate [B, D], all of one dtype. Returns [B, L, D]. Differentiable in
/// all three tensors. On CUDA (bf16, fp32; D a multiple of 8, at most 16384) one kernel with fp32 arithmetic
/// that rounds once and keeps y and gate for backward; its gradients are bitwise repeatable. Elsewhere
/// reference::gate_residual.
at::Tensor gate_residual(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate);

namespace reference {
/// The same as a composition of ATen operations, each rounding to the dtype of x. Any dtype and device.
at::Tensor gate_residual(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate);
}  // namespace reference

}  // namespace flowshard::kernels
