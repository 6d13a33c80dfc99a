// The raw side of the kernels: plain pointers, sizes and a stream, so that .cu files need no LibTorch header.
// Each struct is the argument of one launch; enqueue() puts it on the stream and returns. Pointers are device
// memory, dense unless strides are given and aligned to 16 bytes. Without a CUDA compiler no_cuda.cpp takes
// the place of the .cu files.
// B: batch, L: tokens, D: channels, H: heads, Dh: channels of a head.
#pragma once

#include <algorithm>
#include <cstdint>

struct CUstream_st;

namespace flowshard::kernels::cuda {

using Stream = CUstream_st*;

/// Whether the kernels are compiled for the current GPU.
bool has_code_for_device();

enum class ElementType { kFloat32, kBFloat16 };

/// Largest D of the kernels whose rows are tokens, and largest Dh of those whose rows are heads.
constexpr int64_t kMaxChannels = 16384;
constexpr int64_t kMaxHeadDim = 256;

/// [Note: repeatable sums] Gradients of per-batch vectors are sums over tokens. `parts` blocks share the
/// tokens of a batch entry: block i takes tokens i, i + parts, i + 2 parts, ... (neighbouring blocks read
/// neighbouring memory) and sums them in this order into row i of `partials`; sum_columns adds these rows in
/// order. No atomics, so the same inputs give the same bits. `parts` depends on the shape alone, not on the
/// GPU.
constexpr int64_t parts(int64_t batch, int64_t tokens, int64_t blocks) {
  return std::min(tokens, std::max<int64_t>(1, blocks / batch));
}

/// For layer_norm_modulate and gate_residual: two blocks for each multiprocessor of an H100 or H200.
constexpr int64_t row_parts(int64_t batch, int64_t tokens) { return parts(batch, tokens, 264); }

/// For qk_norm_rope, whose scales are shared by the batch: five smaller blocks for each multiprocessor.
constexpr int64_t head_parts(int64_t batch, int64_t tokens) { return parts(1, batch * tokens, 660); }

struct LayerNormModulateForward {
  ElementType type;
  const void *x, *shift, *scale;  // [B, L, D], [B, D], [B, D]
  void* y;                        // [B, L, D]
  float *mean, *rstd;             // [B, L] or null
  int64_t batch, tokens, channels;
  float eps;
};
void enqueue(const LayerNormModulateForward& launch, Stream stream);

struct LayerNormModulateBackward {
  ElementType type;
  const void *grad_y, *x, *scale;  // [B, L, D], [B, L, D], [B, D]
  const float *mean, *rstd;        // [B, L]
  void* grad_x;                    // [B, L, D]
  float* partials;                 // [B, row_parts, 2 D]: grad_shift, grad_scale; or null
  int64_t batch, tokens, channels;
};
void enqueue(const LayerNormModulateBackward& launch, Stream stream);

struct GateResidualForward {
  ElementType type;
  const void *x, *y, *gate;  // [B, L, D], [B, L, D], [B, D]
  void* out;                 // [B, L, D]
  int64_t batch, tokens, channels;
};
void enqueue(const GateResidualForward& launch, Stream stream);

struct GateResidualBackward {
  ElementType type;
  const void *grad_out, *y, *gate;  // [B, L, D], [B, L, D], [B, D]
  void* grad_y;                     // [B, L, D]
  float* partials;                  // [B, row_parts, D]: grad_gate; or null
  int64_t batch, tokens, channels;
};
void enqueue(const GateResidualBackward& launch, Stream stream);

/// Element strides of a [B, H, L, Dh] tensor whose Dh elements are dense.
struct HeadStrides {
  int64_t batch, head, token;
};

struct QkNormRopeForward {
  ElementType type;
  const void* qkv;                // [B, L, 3, H, Dh], tokens qkv_token_stride elements apart
  const void *q_scale, *k_scale;  // [Dh]
  const float *cos, *sin;         // [L, Dh / 2], of this stream
  void *q, *k, *v;                // first token of this stream, in [B, L_joint, H, Dh]
  int64_t qkv_token_stride;
  int64_t batch, tokens, joint_tokens, heads, head_dim;
  float eps;
};
void enqueue(const QkNormRopeForward& launch, Stream stream);

struct QkNormRopeBackward {
  ElementType type;
  const void* qkv;
  const void *q_scale, *k_scale;
  const float *cos, *sin;
  const void *grad_q, *grad_k, *grad_v;  // first token of this stream
  HeadStrides grad_q_strides, grad_k_strides, grad_v_strides;
  void* grad_qkv;   // [B, L, 3, H, Dh], dense
  float* partials;  // [1, head_parts, 2 Dh]: grad_q_scale, grad_k_scale; or null
  int64_t qkv_token_stride;
  int64_t batch, tokens, heads, head_dim;
  float eps;
};
void enqueue(const QkNormRopeBackward& launch, Stream stream);

/// bf16: y = gelu(x W^T + b), tanh approximation; every row dense, rows apart as the strides say.
struct LinearGelu {
  const void *x, *weight, *bias;  // [N, I], [O, I], [O]
  void* y;                        // [N, O]
  void* workspace;
  int64_t workspace_bytes;
  int64_t rows, inputs, outputs;
  int64_t x_row_stride, weight_row_stride, y_row_stride;
};
void enqueue(const LinearGelu& launch, Stream stream);

/// values [N] to codes [N] and scales [N / 256, rounded up] (kernels/blockwise_quantization.h). No alignment
/// but that of an element is needed.
struct QuantizeBlockwise {
  const float* values;
  uint8_t* codes;
  float* scales;
  int64_t count;
  bool is_signed;
};
void enqueue(const QuantizeBlockwise& launch, Stream stream);

struct DequantizeBlockwise {
  const uint8_t* codes;
  const float* scales;
  float* values;
  int64_t count;
  bool is_signed;
};
void enqueue(const DequantizeBlockwise& launch, Stream stream);

/// One AdamW step on N elements (kernels/adamw.h). No alignment but that of an element is needed, unless
/// in_groups says that each of param, grad, exp_avg and exp_avg_sq is aligned to four of its elements.
struct AdamW {
  ElementType param_type, grad_type;
  bool has_codes;  // exp_avg and exp_avg_sq are uint8 codes, otherwise float
  bool in_groups;
  void* param;                              // [N]
  const void* grad;                         // [N]
  void *exp_avg, *exp_avg_sq;               // [N]
  float *exp_avg_scale, *exp_avg_sq_scale;  // [N / 256, rounded up], with codes
  int64_t count, first_element;
  uint64_t rounding_key;
  float grad_scale, decay, beta1, beta2, one_minus_beta1, one_minus_beta2;
  float step_size;           // lr / (1 - beta1^step)
  float inverse_root_bias2;  // 1 / sqrt(1 - beta2^step)
  float eps;
};
void enqueue(const AdamW& launch, Stream stream);

/// Sums `parts` rows in order: columns [0, split) of [B, parts, columns] go to first [B, split], the others
/// to second [B, columns - split] (null if there are none).
struct SumColumns {
  ElementType type;  // of first and second
  const float* partials;
  void *first, *second;
  int64_t batch, parts, columns, split;
};
void enqueue(const SumColumns& launch, Stream stream);

}  // namespace flowshard::kernels::cuda
