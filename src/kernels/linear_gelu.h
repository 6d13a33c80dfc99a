// A linear layer with the GELU of an MLP folded into the matrix product. For inference: not differentiable.
// N: rows (any leading dimensions), I: inputs, O: outputs. Thread-safe; on CUDA all work goes to the current
// stream of x's device.
#pragma once

#include <ATen/ATen.h>

namespace flowshard::kernels {

/// gelu(x W^T + b) with the tanh approximation, for x [..., I], weight [O, I], bias [O], all of one dtype;
/// returns [..., O]. On CUDA in bf16 (I and O multiples of 8) one product that rounds once, after the GELU.
/// Elsewhere reference::linear_gelu.
at::Tensor linear_gelu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// The same into `out` [..., O], whose rows may be part of wider ones.
void linear_gelu_out(const at::Tensor& out, const at::Tensor& x, const at::Tensor& weight,
                     const at::Tensor& bias);

namespace reference {
/// The same as two ATen operations. Any dtype and device.
at::Tensor linear_gelu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);
}  // namespace reference

}  // namespace flowshard::kernels
