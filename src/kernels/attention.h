// Attention of all tokens to all tokens, without mask or dropout.
// B: batch, H: heads, L: tokens, Dh: channels of a head. Thread-safe; on CUDA all work goes to the current
// stream of q's device.
#pragma once

#include <ATen/ATen.h>

namespace flowshard::kernels {

/// softmax(q k^T / sqrt(Dh)) v for q [B, H, L, Dh] and k, v [B, H, L_k, Dh], all of one dtype and any
/// strides. Returns [B, H, L, Dh]; on CUDA it lies in memory as q does. Differentiable in all three tensors.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

}  // namespace flowshard::kernels
