// One AdamW step: bound by memory, 28 bytes an element with everything in fp32, 10 with a bf16 parameter and
// gradient and moments of 8 bits. A warp works on 256 elements at a time, one block of codes.
#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/blockwise_quantization.cuh"
#include "kernels/launch.h"
#include "kernels/stochastic_rounding.h"

namespace flowshard::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarpSize;
constexpr int kBlocksOfMultiprocessor = 4;  // with 64 registers a thread

struct MomentCodes {
  SignedCode exp_avg;
  UnsignedCode exp_avg_sq;
};
__device__ const MomentCodes kMomentCodes;

using Values = float[kGroups][kGroup];

/// The 256 elements of a warp, from `first` on. kWhole: all exist and groups of four are aligned.
template <bool kWhole>
struct Elements {
  int64_t first, count;
  int lane;

  template <typename T>
  __device__ void load(const void* from, T fill, Group<T> (&groups)[kGroups]) const {
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
      groups[group] =
          load_group<kWhole>(static_cast<const T*>(from), group_start(first, group, lane), count, fill);
  }

  template <typename T>
  __device__ void store(void* to, const Group<T> (&groups)[kGroups]) const {
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
      store_group<kWhole>(static_cast<T*>(to), group_start(first, group, lane), count, groups[group]);
  }
};

template <typename T>
__device__ void to_float(const Group<T> (&groups)[kGroups], Values& values) {
#pragma unroll
  for (int group = 0; group < kGroups; ++group)
#pragma unroll
    for (int i = 0; i < kGroup; ++i) values[group][i] = static_cast<float>(groups[group].values[i]);
}

template <typename Code>
__device__ void decode(const Code& code, const Group<uint8_t> (&groups)[kGroups], float scale,
                       Values& values) {
#pragma unroll
  for (int group = 0; group < kGroups; ++group)
#pragma unroll
    for (int i = 0; i < kGroup; ++i) values[group][i] = code.decode(groups[group].values[i]) * scale;
}

__device__ float root(float x) {  // within 2^-23 of it
  float result;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

__device__ void update(const AdamW& launch, const Values& grad, Values& param, Values& exp_avg,
                       Values& exp_avg_sq) {
#pragma unroll
  for (int group = 0; group < kGroups; ++group)
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const float g = grad[group][i] * launch.grad_scale;
      const float m = launch.beta1 * exp_avg[group][i] + launch.one_minus_beta1 * g;
      const float v = launch.beta2 * exp_avg_sq[group][i] + launch.one_minus_beta2 * g * g;
      param[group][i] = launch.decay * param[group][i] -
                        __fdividef(launch.step_size * m, root(v) * launch.inverse_root_bias2 + launch.eps);
      exp_avg[group][i] = m;
      exp_avg_sq[group][i] = v;
    }
}

__device__ void round(const AdamW&, int64_t, int, const Values& values, Group<float> (&groups)[kGroups]) {
#pragma unroll
  for (int group = 0; group < kGroups; ++group)
#pragma unroll
    for (int i = 0; i < kGroup; ++i) groups[group].values[i] = values[group][i];
}

__device__ void round(const AdamW& launch, int64_t first, int lane, const Values& values,
                      Group<__nv_bfloat16> (&groups)[kGroups]) {
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const uint64_t bits =
        rounding_bits(launch.rounding_key, launch.first_element + group_start(first, group, lane));
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
      groups[group].values[i] =
          __ushort_as_bfloat16(round_to_bf16(values[group][i], static_cast<uint16_t>(bits >> (16 * i))));
  }
}

/// Everything is loaded before the first use, so that the loads of a warp are in flight together.
template <typename Param, typename Grad, bool kWhole>
__device__ void step(const AdamW& launch, const Elements<kWhole>& elements) {
  Group<Param> params[kGroups];
  Group<Grad> grads[kGroups];
  Group<float> moments[kGroups], squares[kGroups];
  elements.load(launch.param, Param(0.0f), params);
  elements.load(launch.grad, Grad(0.0f), grads);
  elements.load(launch.exp_avg, 0.0f, moments);
  elements.load(launch.exp_avg_sq, 0.0f, squares);
  Values param, grad, exp_avg, exp_avg_sq;
  to_float(params, param);
  to_float(grads, grad);
  to_float(moments, exp_avg);
  to_float(squares, exp_avg_sq);
  update(launch, grad, param, exp_avg, exp_avg_sq);
  round(launch, elements.first, elements.lane, exp_avg, moments);
  round(launch, elements.first, elements.lane, exp_avg_sq, squares);
  round(launch, elements.first, elements.lane, param, params);
  elements.store(launch.exp_avg, moments);
  elements.store(launch.exp_avg_sq, squares);
  elements.store(launch.param, params);
}

template <typename Param, typename Grad, bool kWhole>
__device__ void step(const AdamW& launch, const Elements<kWhole>& elements, const MomentCodes& codes) {
  Group<Param> params[kGroups];
  Group<Grad> grads[kGroups];
  Group<uint8_t> moments[kGroups], squares[kGroups];
  float* const scale = launch.exp_avg_scale + elements.first / kCodeBlock;
  float* const square_scale = launch.exp_avg_sq_scale + elements.first / kCodeBlock;
  elements.load(launch.param, Param(0.0f), params);
  elements.load(launch.grad, Grad(0.0f), grads);
  elements.load(launch.exp_avg, SignedCode::kZero, moments);
  elements.load(launch.exp_avg_sq, UnsignedCode::kZero, squares);
  Values param, grad, exp_avg, exp_avg_sq;
  to_float(params, param);
  to_float(grads, grad);
  decode(codes.exp_avg, moments, *scale, exp_avg);
  decode(codes.exp_avg_sq, squares, *square_scale, exp_avg_sq);
  update(launch, grad, param, exp_avg, exp_avg_sq);
  const float new_scale = encode_block(codes.exp_avg, exp_avg, moments);
  const float new_square_scale = encode_block(codes.exp_avg_sq, exp_avg_sq, squares);
  round(launch, elements.first, elements.lane, param, params);
  elements.store(launch.exp_avg, moments);
  elements.store(launch.exp_avg_sq, squares);
  elements.store(launch.param, params);
  if (elements.lane == 0) {
    *scale = new_scale;
    *square_scale = new_square_scale;
  }
}

/// Calls function(Elements) for every 256 elements of this warp.
template <typename Function>
__device__ void for_each_block(const AdamW& launch, const Function& function) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kWarps * kCodeBlock;
  for (int64_t first = (static_cast<int64_t>(blockIdx.x) * kWarps + warp) * kCodeBlock; first < launch.count;
       first += stride) {
    if (launch.in_groups && first + kCodeBlock <= launch.count) {
      function(Elements<true>{first, launch.count, lane});
    } else {
      function(Elements<false>{first, launch.count, lane});
    }
  }
}

template <typename Param, typename Grad, bool kHasCodes>
__global__ void __launch_bounds__(kThreads, kBlocksOfMultiprocessor) adamw(const AdamW launch) {
  if constexpr (kHasCodes) {
    __shared__ MomentCodes codes;
    copy_code(codes, kMomentCodes);
    __syncthreads();
    for_each_block(launch, [&](const auto& elements) { step<Param, Grad>(launch, elements, codes); });
  } else {
    for_each_block(launch, [&](const auto& elements) { step<Param, Grad>(launch, elements); });
  }
}

template <typename Param, typename Grad, bool kHasCodes>
void launch_kernel(const AdamW& launch, Stream stream) {
  constexpr int64_t kMost = 132 * kBlocksOfMultiprocessor;  // an H100 or H200, full
  const int64_t blocks = (launch.count + kCodeBlock * kWarps - 1) / (kCodeBlock * kWarps);
  adamw<Param, Grad, kHasCodes>
      <<<static_cast<unsigned>(std::min(kMost, blocks)), kThreads, 0, stream>>>(launch);
}

template <typename Param, typename Grad>
void choose_moments(const AdamW& launch, Stream stream) {
  launch.has_codes ? launch_kernel<Param, Grad, true>(launch, stream)
                   : launch_kernel<Param, Grad, false>(launch, stream);
}

template <typename Param>
void choose_grad(const AdamW& launch, Stream stream) {
  launch.grad_type == ElementType::kFloat32 ? choose_moments<Param, float>(launch, stream)
                                            : choose_moments<Param, __nv_bfloat16>(launch, stream);
}

}  // namespace

void enqueue(const AdamW& launch, Stream stream) {
  if (launch.count == 0) return;
  launch.param_type == ElementType::kFloat32 ? choose_grad<float>(launch, stream)
                                             : choose_grad<__nv_bfloat16>(launch, stream);
}

}  // namespace flowshard::kernels::cuda
