// A warp and its block of 256 numbers: each lane has two groups of four neighbours, the groups of all lanes
// lie side by side, so that every access of a warp is one dense stretch.
#pragma once

#include <cstdint>

#include "kernels/dynamic_code.h"

namespace flowshard::kernels::cuda {

constexpr int kWarpSize = 32, kGroup = 4, kGroups = kCodeBlock / (kWarpSize * kGroup);

/// The index of group `group` of lane `lane` in the block that starts at `first`.
__device__ inline int64_t group_start(int64_t first, int group, int lane) {
  return first + (group * kWarpSize + lane) * kGroup;
}

/// Four neighbours, read and written at once where they are aligned to this.
template <typename T>
struct alignas(kGroup * sizeof(T)) Group {
  T values[kGroup];
};

/// Elements index ... index + 3 of `count`, with `fill` for those behind the end. kWhole: none is, and they
/// are aligned.
template <bool kWhole, typename T>
__device__ inline Group<T> load_group(const T* from, int64_t index, int64_t count, T fill) {
  Group<T> group;
  if constexpr (kWhole) {
    group = *reinterpret_cast<const Group<T>*>(from + index);
  } else {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) group.values[i] = index + i < count ? from[index + i] : fill;
  }
  return group;
}

template <bool kWhole, typename T>
__device__ inline void store_group(T* to, int64_t index, int64_t count, const Group<T>& group) {
  if constexpr (kWhole) {
    *reinterpret_cast<Group<T>*>(to + index) = group;
  } else {
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
      if (index + i < count) to[index + i] = group.values[i];
  }
}

/// Copies the tables of a code to shared memory, which must be followed by a barrier: lanes read them at
/// addresses of their own, which constant memory serves one by one.
template <typename Code>
__device__ inline void copy_code(Code& to, const Code& from) {
  static_assert(sizeof(Code) % sizeof(int) == 0);
  for (int i = threadIdx.x; i < static_cast<int>(sizeof(Code) / sizeof(int)); i += blockDim.x)
    reinterpret_cast<int*>(&to)[i] = reinterpret_cast<const int*>(&from)[i];
}

/// The scale of the block, on every lane, and its codes.
template <typename Code>
__device__ inline float encode_block(const Code& code, const float (&values)[kGroups][kGroup],
                                     Group<uint8_t> (&codes)[kGroups]) {
  float largest = 0;
#pragma unroll
  for (int group = 0; group < kGroups; ++group)
#pragma unroll
    for (int i = 0; i < kGroup; ++i) largest = fmaxf(largest, fabsf(values[group][i]));
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, offset));
  const float inverse = inverse_scale(largest);
#pragma unroll
  for (int group = 0; group < kGroups; ++group)
#pragma unroll
    for (int i = 0; i < kGroup; ++i) codes[group].values[i] = code.encode(values[group][i] * inverse);
  return largest;
}

/// Calls run<Code>() with the code of the kind.
template <typename Function>
void with_code(bool is_signed, const Function& run) {
  if (is_signed) {
    run.template operator()<SignedCode>();
  } else {
    run.template operator()<UnsignedCode>();
  }
}

}  // namespace flowshard::kernels::cuda
