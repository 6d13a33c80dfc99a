// LN(x) * (1 + scale) + shift: bound by memory. Forward reads x and writes y; backward reads x and grad_y and
// writes grad_x, plus partial sums (7 % more at [1, 4608, 3072]).
#include "kernels/rows.cuh"

namespace flowshard::kernels::cuda {
namespace {

/// Column of a thread's pack p.
template <typename T>
__device__ int column_of(int p) {
  return static_cast<int>(p * blockDim.x + threadIdx.x) * Pack<T>::kSize;
}

// One block a token, and small ones, so that a multiprocessor has many in different phases: 128 threads with
// 3 packs each for 3072 channels in bf16. shift and scale are read late: by then other blocks have left them
// in the cache, and early they would cost registers.
template <typename T, int kPacks>
__global__ void __launch_bounds__(1024) forward(const LayerNormModulateForward launch) {
  constexpr int kSize = Pack<T>::kSize;
  __shared__ float scratch[2][32][1];
  const auto channels = static_cast<int>(launch.channels);
  const float inverse = 1 / static_cast<float>(channels);
  const int64_t batch = blockIdx.y, row = batch * launch.tokens + blockIdx.x;
  const auto* x = static_cast<const T*>(launch.x) + row * channels;
  const auto* shift = static_cast<const T*>(launch.shift) + batch * channels;
  const auto* scale = static_cast<const T*>(launch.scale) + batch * channels;
  auto* y = static_cast<T*>(launch.y) + row * channels;

  Pack<T> raw[kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p)
    raw[p] = column_of<T>(p) < channels ? load(x + column_of<T>(p)) : zero_pack<T>();
  float values[kSize], mean[1] = {0}, variance[1] = {0};
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    unpack(raw[p], values);
#pragma unroll
    for (int i = 0; i < kSize; ++i) mean[0] += values[i];
  }
  block_sum(mean, scratch[0]);
  mean[0] *= inverse;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (column_of<T>(p) >= channels) continue;
    unpack(raw[p], values);
#pragma unroll
    for (int i = 0; i < kSize; ++i) variance[0] += (values[i] - mean[0]) * (values[i] - mean[0]);
  }
  block_sum(variance, scratch[1]);
  const float rstd = rsqrtf(variance[0] * inverse + launch.eps);
  if (threadIdx.x == 0 && launch.mean) {
    launch.mean[row] = mean[0];
    launch.rstd[row] = rstd;
  }
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int column = column_of<T>(p);
    if (column >= channels) continue;
    float factor[kSize], offset[kSize];
    unpack(raw[p], values);
    unpack(load(scale + column), factor);
    unpack(load(shift + column), offset);
#pragma unroll
    for (int i = 0; i < kSize; ++i) values[i] = (values[i] - mean[0]) * rstd * (1 + factor[i]) + offset[i];
    store(y + column, pack(values));
  }
}

/// What a thread reads of one token: zeros unless `in`. No branch, so that the loads of several tokens
/// overlap.
template <typename T, int kPacks>
struct Row {
  Pack<T> x[kPacks], grad[kPacks];
  float mean, rstd;

  __device__ void read(const LayerNormModulateBackward& launch, int64_t row, bool in) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const bool active = in && column_of<T>(p) < launch.channels;
      const int64_t at = row * launch.channels + column_of<T>(p);
      x[p] = active ? load(static_cast<const T*>(launch.x) + at) : zero_pack<T>();
      grad[p] = active ? load(static_cast<const T*>(launch.grad_y) + at) : zero_pack<T>();
    }
    mean = in ? launch.mean[row] : 0;
    rstd = in ? launch.rstd[row] : 0;
  }
  __device__ void normed(int p, float (&out)[Pack<T>::kSize]) const {
    unpack(x[p], out);
#pragma unroll
    for (int i = 0; i < Pack<T>::kSize; ++i) out[i] = (out[i] - mean) * rstd;
  }
};

/// Tokens of a block that are read and reduced together, and most threads of it. More tokens or threads would
/// spill registers to memory, which costs more than it hides.
template <int kPacks>
constexpr int kRows = kPacks == 1 ? 2 : 1;
template <typename T, int kPacks>
constexpr int kMaxThreads = kPacks < 4       ? 384
                            : sizeof(T) == 4 ? 1024
                                             : 512;

// A block walks over tokens ([Note: repeatable sums]) and keeps the sums of its threads' columns in
// registers.
template <typename T, int kPacks>
__global__ void __launch_bounds__(kMaxThreads<T, kPacks>, kPacks == 1 ? 2 : 1)
    backward(const LayerNormModulateBackward launch) {
  constexpr int kSize = Pack<T>::kSize, kTogether = kRows<kPacks>;
  __shared__ alignas(16) float scratch[2][32][2 * kTogether];
  const int64_t channels = launch.channels, batch = blockIdx.y, step = gridDim.x;
  const float inverse = 1 / static_cast<float>(channels);
  Pack<T> scale[kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p)
    scale[p] = column_of<T>(p) < channels
                   ? load(static_cast<const T*>(launch.scale) + batch * channels + column_of<T>(p))
                   : zero_pack<T>();

  float grad_shift[kPacks][kSize] = {}, grad_scale[kPacks][kSize] = {};
  const int64_t end = (batch + 1) * launch.tokens;
  int turn = 0;
  for (int64_t first = batch * launch.tokens + blockIdx.x; first < end; first += kTogether * step) {
    Row<T, kPacks> rows[kTogether];
#pragma unroll
    for (int r = 0; r < kTogether; ++r) rows[r].read(launch, first + r * step, first + r * step < end);
    // Of each token, with g the gradient of its normed row: the sums of g and of g * normed.
    float sums[2 * kTogether] = {};
#pragma unroll
    for (int r = 0; r < kTogether; ++r) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        float factor[kSize], normed[kSize], grad[kSize];
        unpack(scale[p], factor);
        unpack(rows[r].grad[p], grad);
        rows[r].normed(p, normed);
#pragma unroll
        for (int i = 0; i < kSize; ++i) {
          grad_shift[p][i] += grad[i];
          grad_scale[p][i] += grad[i] * normed[i];
          grad[i] *= 1 + factor[i];
          sums[2 * r] += grad[i];
          sums[2 * r + 1] += grad[i] * normed[i];
        }
      }
    }
    block_sum(sums, scratch[turn]);
    turn ^= 1;
#pragma unroll
    for (int r = 0; r < kTogether; ++r) {
      const int64_t row = first + r * step;
      const float mean_g = sums[2 * r] * inverse, mean_g_normed = sums[2 * r + 1] * inverse;
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        if (row >= end || column_of<T>(p) >= channels) continue;
        float factor[kSize], normed[kSize], grad[kSize];
        unpack(scale[p], factor);
        unpack(rows[r].grad[p], grad);
        rows[r].normed(p, normed);
#pragma unroll
        for (int i = 0; i < kSize; ++i)
          grad[i] = rows[r].rstd * (grad[i] * (1 + factor[i]) - mean_g - normed[i] * mean_g_normed);
        store(static_cast<T*>(launch.grad_x) + row * channels + column_of<T>(p), pack(grad));
      }
    }
  }

  if (!launch.partials) return;
  float* partials = launch.partials + (batch * gridDim.x + blockIdx.x) * 2 * channels;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (column_of<T>(p) >= channels) continue;
    store_floats(partials + column_of<T>(p), grad_shift[p]);
    store_floats(partials + channels + column_of<T>(p), grad_scale[p]);
  }
}

}  // namespace

void enqueue(const LayerNormModulateForward& launch, Stream stream) {
  with_type(launch.type, [&]<typename T>() {
    const int64_t packs = launch.channels / Pack<T>::kSize;
    const dim3 grid(static_cast<unsigned>(launch.tokens), static_cast<unsigned>(launch.batch));
    if (packs <= 3 * 1024) {
      forward<T, 3><<<grid, threads_for(packs, 3), 0, stream>>>(launch);
    } else {
      forward<T, 4><<<grid, threads_for(packs, 4), 0, stream>>>(launch);
    }
  });
}

void enqueue(const LayerNormModulateBackward& launch, Stream stream) {
  with_type(launch.type, [&]<typename T>() {
    const int64_t packs = launch.channels / Pack<T>::kSize;
    const dim3 grid(static_cast<unsigned>(row_parts(launch.batch, launch.tokens)),
                    static_cast<unsigned>(launch.batch));
    if (packs <= 384) {
      backward<T, 1><<<grid, threads_for(packs, 1), 0, stream>>>(launch);
    } else if (packs <= 2 * 384) {
      backward<T, 2><<<grid, threads_for(packs, 2), 0, stream>>>(launch);
    } else {
      backward<T, 4><<<grid, threads_for(packs, 4), 0, stream>>>(launch);
    }
  });
}

}  // namespace flowshard::kernels::cuda
