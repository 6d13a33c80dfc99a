// Attention of all tokens to all tokens, without mask or dropout.
// B: batch, H: heads, L: tokens, Dh: channels of a head. Thread-safe; on CUDA all work goes to the current
// stream of q's device.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "kernels/qk_norm_rope.h"

namespace flowshard::kernels {

/// softmax(q k^T / sqrt(Dh)) v for q [B, H, L, Dh] and k, v [B, H, L_k, Dh], all of one dtype and any
/// strides. Returns [B, H, L, Dh]; on CUDA it lies in memory as q does. Differentiable in all three tensors.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

/// attention() of what qk_norm_rope(streams, cos, sin) makes, with the same bits. Backward computes q, k and
/// v again instead of keeping them: of the forward pass remain the streams, the result and its log-sum-exp.
/// Where neither cuDNN nor the CPU's fused attention takes the tensors, q, k and v are kept.
at::Tensor attention_of_streams(const std::vector<QkvStream>& streams, const at::Tensor& cos,
                                const at::Tensor& sin);

}  // namespace flowshard::kernels
