#include "kernels/rows.cuh"

namespace flowshard::kernels::cuda {
namespace {

// A warp reads 32 neighbouring columns; 32 warps share the rows. The rows were written just before and are in
// the L2 cache, so time goes into waiting: hence so many warps, and several loads of each at once.
constexpr int kWarps = 32;

template <typename T>
__global__ void __launch_bounds__(32 * kWarps) sum_columns(const SumColumns launch) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x;
  const int64_t batch = blockIdx.y;
  __shared__ float sums[kWarps][32];
  float sum = 0;
  if (column < launch.columns) {
    const float* partials = launch.partials + batch * launch.parts * launch.columns + column;
#pragma unroll 8
    for (int64_t part = threadIdx.y; part < launch.parts; part += kWarps)
      sum += partials[part * launch.columns];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= launch.columns) return;
  float total = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) total += sums[warp][threadIdx.x];
  const int64_t split = launch.split;
  if (column < split) {
    static_cast<T*>(launch.first)[batch * split + column] = from_float<T>(total);
  } else {
    static_cast<T*>(launch.second)[batch * (launch.columns - split) + column - split] = from_float<T>(total);
  }
}

}  // namespace

// All kernels are compiled for the same architectures.
bool has_code_for_device() {
  cudaFuncAttributes attributes;
  const bool has = cudaFuncGetAttributes(&attributes, sum_columns<float>) == cudaSuccess;
  cudaGetLastError();  // clears it
  return has;
}

void enqueue(const SumColumns& launch, Stream stream) {
  const dim3 grid(static_cast<unsigned>((launch.columns + 31) / 32), static_cast<unsigned>(launch.batch));
  const dim3 block(32, kWarps);
  if (launch.type == ElementType::kFloat32) {
    sum_columns<float><<<grid, block, 0, stream>>>(launch);
  } else {
    sum_columns<__nv_bfloat16><<<grid, block, 0, stream>>>(launch);
  }
}

}  // namespace flowshard::kernels::cuda
