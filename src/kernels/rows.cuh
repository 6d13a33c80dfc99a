// What the kernels share: 16-byte packs of elements, sums over a block, choice of the element type.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "kernels/launch.h"

namespace flowshard::kernels::cuda {

template <typename T>
struct alignas(16) Pack {
  static constexpr int kSize = 16 / sizeof(T);
  T values[kSize];
};

template <typename T>
__device__ inline Pack<T> load(const T* address) {
  Pack<T> pack;
  *reinterpret_cast<int4*>(&pack) = *reinterpret_cast<const int4*>(address);
  return pack;
}

template <typename T>
__device__ inline Pack<T> zero_pack() {
  Pack<T> pack;
  *reinterpret_cast<int4*>(&pack) = make_int4(0, 0, 0, 0);
  return pack;
}

template <typename T>
__device__ inline void store(T* address, const Pack<T>& pack) {
  *reinterpret_cast<int4*>(address) = *reinterpret_cast<const int4*>(&pack);
}

__device__ inline void unpack(const Pack<float>& pack, float (&out)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) out[i] = pack.values[i];
}

__device__ inline void unpack(const Pack<__nv_bfloat16>& pack, float (&out)[8]) {
  const auto* pairs = reinterpret_cast<const __nv_bfloat162*>(&pack);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = __bfloat1622float2(pairs[i]);
    out[2 * i] = pair.x;
    out[2 * i + 1] = pair.y;
  }
}

__device__ inline Pack<float> pack(const float (&values)[4]) {
  return {{values[0], values[1], values[2], values[3]}};
}

__device__ inline Pack<__nv_bfloat16> pack(const float (&values)[8]) {
  Pack<__nv_bfloat16> out;
  auto* pairs = reinterpret_cast<__nv_bfloat162*>(&out);
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs[i] = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
  return out;
}

template <typename T>
__device__ inline T from_float(float value) {
  return static_cast<T>(value);
}

/// The value as it reads back after being stored as T.
template <typename T>
__device__ inline float rounded(float value) {
  return static_cast<float>(from_float<T>(value));
}

/// Stores kSize floats, a multiple of 4, at an address aligned to 16 bytes.
template <int kSize>
__device__ inline void store_floats(float* address, const float (&values)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; i += 4)
    store(address + i, Pack<float>{{values[i], values[i + 1], values[i + 2], values[i + 3]}});
}

/// Sums each of kCount numbers over the block, in an order that depends on the block's size alone; every
/// thread gets the sums. `scratch` may be used again only after another barrier: alternate between two.
template <int kCount>
__device__ inline void block_sum(float (&values)[kCount], float (*scratch)[kCount]) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] += __shfl_xor_sync(0xffffffff, values[i], offset);
  }
  const int warps = blockDim.x / 32;
  if (threadIdx.x % 32 == 0) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) scratch[threadIdx.x / 32][i] = values[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = 0;
  for (int warp = 0; warp < warps; ++warp) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] += scratch[warp][i];
  }
}

/// Calls launch<T>() with the element type.
template <typename Launch>
void with_type(ElementType type, const Launch& launch) {
  if (type == ElementType::kFloat32) {
    launch.template operator()<float>();
  } else {
    launch.template operator()<__nv_bfloat16>();
  }
}

/// Threads that hold `packs` packs, `each` to a thread: whole warps.
inline int threads_for(int64_t packs, int64_t each) {
  return static_cast<int>(((packs + each - 1) / each + 31) / 32 * 32);
}

}  // namespace flowshard::kernels::cuda
