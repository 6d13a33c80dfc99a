// x + gate * y: bound by memory. Forward reads x and y and writes out; backward reads grad_out and y and
// writes grad_y (the gradient of x is grad_out itself), plus partial sums (4 % more at [1, 4608, 3072]).
#include "kernels/rows.cuh"

namespace flowshard::kernels::cuda {
namespace {

constexpr int kMaxThreads = 512;

// A block walks over tokens of one batch entry ([Note: repeatable sums]); a thread keeps to its columns, so
// that their gates, and the sums of their gradients, stay in registers.
template <typename T>
__global__ void __launch_bounds__(kMaxThreads) forward(const GateResidualForward launch) {
  constexpr int kSize = Pack<T>::kSize;
  const int64_t channels = launch.channels, batch = blockIdx.y;
  const int64_t first = batch * launch.tokens + blockIdx.x, end = (batch + 1) * launch.tokens;
  const auto* __restrict__ x = static_cast<const T*>(launch.x);
  const auto* __restrict__ y = static_cast<const T*>(launch.y);
  auto* __restrict__ out = static_cast<T*>(launch.out);
  for (int64_t column = threadIdx.x * kSize; column < channels; column += blockDim.x * kSize) {
    float gate[kSize];
    unpack(load(static_cast<const T*>(launch.gate) + batch * channels + column), gate);
#pragma unroll 4
    for (int64_t row = first; row < end; row += gridDim.x) {
      float residual[kSize], branch[kSize];
      unpack(load(x + row * channels + column), residual);
      unpack(load(y + row * channels + column), branch);
#pragma unroll
      for (int i = 0; i < kSize; ++i) residual[i] += gate[i] * branch[i];
      store(out + row * channels + column, pack(residual));
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kMaxThreads) backward(const GateResidualBackward launch) {
  constexpr int kSize = Pack<T>::kSize;
  const int64_t channels = launch.channels, batch = blockIdx.y;
  const int64_t first = batch * launch.tokens + blockIdx.x, end = (batch + 1) * launch.tokens;
  const auto* __restrict__ y = static_cast<const T*>(launch.y);
  const auto* __restrict__ grad_out = static_cast<const T*>(launch.grad_out);
  auto* __restrict__ grad_y = static_cast<T*>(launch.grad_y);
  for (int64_t column = threadIdx.x * kSize; column < channels; column += blockDim.x * kSize) {
    float gate[kSize], grad_gate[kSize] = {};
    unpack(load(static_cast<const T*>(launch.gate) + batch * channels + column), gate);
#pragma unroll 4
    for (int64_t row = first; row < end; row += gridDim.x) {
      float grad[kSize], branch[kSize];
      unpack(load(grad_out + row * channels + column), grad);
      unpack(load(y + row * channels + column), branch);
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        grad_gate[i] += grad[i] * branch[i];
        grad[i] *= gate[i];
      }
      store(grad_y + row * channels + column, pack(grad));
    }
    if (launch.partials)
      store_floats(launch.partials + (batch * gridDim.x + blockIdx.x) * channels + column, grad_gate);
  }
}

template <typename T>
int threads_of(int64_t channels) {
  return std::min(kMaxThreads, threads_for(channels / Pack<T>::kSize, 1));
}

}  // namespace

void enqueue(const GateResidualForward& launch, Stream stream) {
  with_type(launch.type, [&]<typename T>() {
    constexpr int64_t kBlocks = 528;
    const dim3 grid(static_cast<unsigned>(parts(launch.batch, launch.tokens, kBlocks)),
                    static_cast<unsigned>(launch.batch));
    forward<T><<<grid, threads_of<T>(launch.channels), 0, stream>>>(launch);
  });
}

void enqueue(const GateResidualBackward& launch, Stream stream) {
  with_type(launch.type, [&]<typename T>() {
    const dim3 grid(static_cast<unsigned>(row_parts(launch.batch, launch.tokens)),
                    static_cast<unsigned>(launch.batch));
    backward<T><<<grid, threads_of<T>(launch.channels), 0, stream>>>(launch);
  });
}

}  // namespace flowshard::kernels::cuda
