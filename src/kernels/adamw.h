// One AdamW step (https://arxiv.org/abs/1711.05101; the formula of torch.optim.AdamW) on a flat shard. With
// g = grad_scale grad:
//   param -= lr weight_decay param
//   exp_avg = beta1 exp_avg + (1 - beta1) g
//   exp_avg_sq = beta2 exp_avg_sq + (1 - beta2) g^2
//   param -= lr / (1 - beta1^step) exp_avg / (sqrt(exp_avg_sq / (1 - beta2^step)) + eps)
// N: elements of the shard. Thread-safe; on CUDA one kernel on the current stream.
#pragma once

#include <ATen/ATen.h>

namespace flowshard::kernels {

/// Dense, on one device. All but grad are updated.
struct AdamWTensors {
  at::Tensor param = {};       // [N] fp32, or bf16: then fp32 arithmetic and stochastic rounding
  at::Tensor grad = {};        // [N] fp32 or bf16, finite
  at::Tensor exp_avg = {};     // [N] fp32, or uint8 codes
  at::Tensor exp_avg_sq = {};  // [N] as exp_avg
  // [num_code_blocks(N)] fp32, with codes only: see blockwise_quantization.h. The parameter moves by the
  // exact new moments; only what is kept of them for the next step is rounded.
  at::Tensor exp_avg_scale = {}, exp_avg_sq_scale = {};
};

struct AdamWOptions {
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  int64_t step = 1;           // of this update, from 1
  double grad_scale = 1;      // clipping and loss unscaling in one
  uint64_t seed = 0;          // of the stochastic rounding (stochastic_rounding.h)
  int64_t first_element = 0;  // index of element 0 in the whole model, for the stochastic rounding
};

/// Takes the shard one step further. On the CPU a composition of ATen operations.
void adamw_step(const AdamWTensors& tensors, const AdamWOptions& options);

}  // namespace flowshard::kernels
