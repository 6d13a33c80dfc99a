#include <algorithm>

#include "kernels/blockwise_quantization.cuh"
#include "kernels/launch.h"

namespace flowshard::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarpSize;

template <typename Code>
__device__ const Code kCode = Code();

int blocks_of_grid(int64_t count) {
  constexpr int64_t kMost = 528;  // four for each multiprocessor of an H100 or H200
  return static_cast<int>(std::min(kMost, (count + kCodeBlock * kWarps - 1) / (kCodeBlock * kWarps)));
}

template <typename Code>
__global__ void __launch_bounds__(kThreads) quantize(const QuantizeBlockwise launch) {
  __shared__ Code code;
  copy_code(code, kCode<Code>);
  __syncthreads();
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  for (int64_t block = blockIdx.x * kWarps + warp; block * kCodeBlock < launch.count;
       block += gridDim.x * kWarps) {
    float values[kGroups][kGroup];
    Group<uint8_t> codes[kGroups];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int64_t index = group_start(block * kCodeBlock, group, lane);
      const Group<float> loaded = load_group<false>(launch.values, index, launch.count, 0.0f);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) values[group][i] = loaded.values[i];
    }
    const float scale = encode_block(code, values, codes);
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
      store_group<false>(launch.codes, group_start(block * kCodeBlock, group, lane), launch.count,
                         codes[group]);
    if (lane == 0) launch.scales[block] = scale;
  }
}

template <typename Code>
__global__ void __launch_bounds__(kThreads) dequantize(const DequantizeBlockwise launch) {
  __shared__ Code code;
  copy_code(code, kCode<Code>);
  __syncthreads();
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < launch.count;
       i += static_cast<int64_t>(gridDim.x) * kThreads)
    launch.values[i] = code.decode(launch.codes[i]) * launch.scales[i / kCodeBlock];
}

}  // namespace

void enqueue(const QuantizeBlockwise& launch, Stream stream) {
  if (launch.count == 0) return;
  with_code(launch.is_signed, [&]<typename Code>() {
    quantize<Code><<<blocks_of_grid(launch.count), kThreads, 0, stream>>>(launch);
  });
}

void enqueue(const DequantizeBlockwise& launch, Stream stream) {
  if (launch.count == 0) return;
  with_code(launch.is_signed, [&]<typename Code>() {
    dequantize<Code><<<blocks_of_grid(launch.count), kThreads, 0, stream>>>(launch);
  });
}

}  // namespace flowshard::kernels::cuda
