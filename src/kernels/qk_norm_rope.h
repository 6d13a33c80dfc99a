// From the outputs of the fused qkv linears to the inputs of attention: RMSNorm of each query and key head,
// rotary position embedding, and placement of several token streams into one sequence.
// B: batch, L: tokens, H: heads, Dh: channels of a head. Thread-safe; on CUDA all work goes to the current
// stream of the streams' device.
#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace flowshard::kernels {

/// One stream of tokens with its own linear and norm weights.
struct QkvStream {
  at::Tensor qkv;      // [B, L_i, 3, H, Dh]; rows (dimensions 2 to 4) dense, any row stride
  at::Tensor q_scale;  // [Dh]
  at::Tensor k_scale;  // [Dh]
};

struct JointQkv {
  at::Tensor q, k, v;  // each [B, H, L, Dh]
};

/// The streams one after another (double block: {txt, img}; single block: {all}), L = sum of L_i. Each query
/// and key row x becomes rope(x * rsqrt(mean(x^2) + eps), rounded, * scale), with interleaved pairs:
///   o[2i] = x[2i] cos[l, i] - x[2i+1] sin[l, i],   o[2i+1] = x[2i+1] cos[l, i] + x[2i] sin[l, i].
/// cos, sin [L, Dh / 2] are of the whole sequence: fp32 (fp64 for fp64 streams), no gradient. Values are
/// placed as they are. q, k and v lie in memory as [B, L, H, Dh], so that an attention output of the same
/// layout merges its heads without a copy: out.transpose(1, 2).flatten(2). Differentiable in every tensor of
/// every stream. On CUDA (bf16, fp32; Dh a multiple of 8, at most 256) one kernel a stream, fp32 arithmetic;
/// backward keeps the inputs only and its gradients are bitwise repeatable. Elsewhere
/// reference::qk_norm_rope.
JointQkv qk_norm_rope(const std::vector<QkvStream>& streams, const at::Tensor& cos, const at::Tensor& sin,
                      double eps = 1e-6);

namespace reference {
/// The same as a composition of ATen operations. Any dtype and device.
JointQkv qk_norm_rope(const std::vector<QkvStream>& streams, const at::Tensor& cos, const at::Tensor& sin,
                      double eps = 1e-6);
}  // namespace reference

}  // namespace flowshard::kernels
