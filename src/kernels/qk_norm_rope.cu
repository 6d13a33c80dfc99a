// RMSNorm, rotary embedding and placement of queries and keys, placement of values: bound by memory. Forward
// reads qkv and writes q, k, v; backward reads the three gradients and the q, k of qkv and writes grad_qkv.
//
// [Note: heads] kLanes neighbouring threads hold one head's row, 8 channels each, and a block holds a group
// of heads of one token, so that a thread uses its cos and sin for every head and for both q and k. Lanes
// past Dh and groups past H compute on zeros and store nothing: they take part in the shuffles.
#include "kernels/rows.cuh"

namespace flowshard::kernels::cuda {
namespace {

constexpr int kChannels = 8;  // of one lane
constexpr int kMaxThreads = 128;

/// 8 channels as they lie in memory, so that many loads can be in flight in few registers.
template <typename T>
struct Raw {
  Pack<T> packs[kChannels / Pack<T>::kSize];
};

template <typename T>
__device__ Raw<T> load_channels(const T* address, bool active) {
  Raw<T> raw;
#pragma unroll
  for (int p = 0; p < kChannels / Pack<T>::kSize; ++p)
    raw.packs[p] = active ? load(address + p * Pack<T>::kSize) : zero_pack<T>();
  return raw;
}

template <typename T>
__device__ void store_channels(T* address, const Raw<T>& raw) {
#pragma unroll
  for (int p = 0; p < kChannels / Pack<T>::kSize; ++p) store(address + p * Pack<T>::kSize, raw.packs[p]);
}

template <typename T>
struct Channels {
  float values[kChannels];
  __device__ explicit Channels(const Raw<T>& raw) {
    constexpr int kSize = Pack<T>::kSize;
#pragma unroll
    for (int p = 0; p < kChannels / kSize; ++p) {
      float part[kSize];
      unpack(raw.packs[p], part);
#pragma unroll
      for (int i = 0; i < kSize; ++i) values[p * kSize + i] = part[i];
    }
  }
  __device__ Raw<T> raw() const {
    constexpr int kSize = Pack<T>::kSize;
    Raw<T> out;
#pragma unroll
    for (int p = 0; p < kChannels / kSize; ++p) {
      float part[kSize];
#pragma unroll
      for (int i = 0; i < kSize; ++i) part[i] = values[p * kSize + i];
      out.packs[p] = pack(part);
    }
    return out;
  }
};

// What follows a sum over lanes divides by Dh. A product with 1 / Dh has fewer instructions, but without the
// branch of the division the compiler moves loads below the sums: measured 4 % slower forward, 10 % backward.
template <int kLanes>
__device__ float lane_sum(float value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffff, value, offset);
  return value;
}

/// The angles of one lane's four pairs.
struct Turn {
  float4 cos, sin;
  __device__ Turn(const float* cos_row, const float* sin_row, bool active)
      : cos(active ? *reinterpret_cast<const float4*>(cos_row) : float4{}),
        sin(active ? *reinterpret_cast<const float4*>(sin_row) : float4{}) {}
  __device__ void forward(float (&x)[kChannels]) const {
    rotate(x[0], x[1], cos.x, sin.x);
    rotate(x[2], x[3], cos.y, sin.y);
    rotate(x[4], x[5], cos.z, sin.z);
    rotate(x[6], x[7], cos.w, sin.w);
  }
  __device__ void backward(float (&x)[kChannels]) const {
    rotate(x[0], x[1], cos.x, -sin.x);
    rotate(x[2], x[3], cos.y, -sin.y);
    rotate(x[4], x[5], cos.z, -sin.z);
    rotate(x[6], x[7], cos.w, -sin.w);
  }
  __device__ static void rotate(float& even, float& odd, float c, float s) {
    const float turned = even * c - odd * s;
    odd = odd * c + even * s;
    even = turned;
  }
};

template <typename T, int kLanes>
__device__ Raw<T> norm_rope(const Raw<T>& raw, const Raw<T>& scale, const Turn& turn, float head_dim,
                            float eps) {
  Channels<T> x(raw);
  const Channels<T> factor(scale);
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kChannels; ++i) squares += x.values[i] * x.values[i];
  const float rstd = rsqrtf(lane_sum<kLanes>(squares) / head_dim + eps);
#pragma unroll
  for (int i = 0; i < kChannels; ++i)
    x.values[i] = rounded<T>(rounded<T>(x.values[i] * rstd) * factor.values[i]);
  turn.forward(x.values);
  return x.raw();
}

/// The gradient of norm_rope's input; adds that of its scale to grad_scale.
template <typename T, int kLanes>
__device__ Raw<T> norm_rope_backward(const Raw<T>& raw, const Raw<T>& raw_grad, const Raw<T>& scale,
                                     const Turn& turn, float head_dim, float eps,
                                     float (&grad_scale)[kChannels]) {
  Channels<T> x(raw), grad(raw_grad);
  const Channels<T> factor(scale);
  turn.backward(grad.values);
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kChannels; ++i) squares += x.values[i] * x.values[i];
  const float rstd = rsqrtf(lane_sum<kLanes>(squares) / head_dim + eps);
  float product = 0;
#pragma unroll
  for (int i = 0; i < kChannels; ++i) {
    x.values[i] *= rstd;
    grad_scale[i] += grad.values[i] * x.values[i];
    grad.values[i] *= factor.values[i];
    product += grad.values[i] * x.values[i];
  }
  const float mean_product = lane_sum<kLanes>(product) / head_dim;
#pragma unroll
  for (int i = 0; i < kChannels; ++i) grad.values[i] = rstd * (grad.values[i] - x.values[i] * mean_product);
  return grad.raw();
}

template <typename T, int kLanes>
__global__ void __launch_bounds__(kMaxThreads, 8) forward(const QkNormRopeForward launch) {
  const int channel = threadIdx.x % kLanes * kChannels, group = threadIdx.x / kLanes;
  const int groups = blockDim.x / kLanes;
  const bool in_row = channel < launch.head_dim;
  const int64_t token = blockIdx.x, batch = blockIdx.y, width = launch.heads * launch.head_dim;
  const auto* qkv =
      static_cast<const T*>(launch.qkv) + (batch * launch.tokens + token) * launch.qkv_token_stride;
  const int64_t out = (batch * launch.joint_tokens + token) * width;

  const int64_t angle = token * (launch.head_dim / 2) + channel / 2;
  const Turn turn(launch.cos + angle, launch.sin + angle, in_row);
  const Raw<T> q_scale = load_channels(static_cast<const T*>(launch.q_scale) + channel, in_row);
  const Raw<T> k_scale = load_channels(static_cast<const T*>(launch.k_scale) + channel, in_row);
  const auto head_dim = static_cast<float>(launch.head_dim);
  for (int64_t first = 0; first < launch.heads; first += groups) {
    const bool active = in_row && first + group < launch.heads;
    const int64_t column = (first + group) * launch.head_dim + channel;
    const Raw<T> q = load_channels(qkv + column, active);
    const Raw<T> k = load_channels(qkv + width + column, active);
    const Raw<T> v = load_channels(qkv + 2 * width + column, active);
    const Raw<T> q_out = norm_rope<T, kLanes>(q, q_scale, turn, head_dim, launch.eps);
    const Raw<T> k_out = norm_rope<T, kLanes>(k, k_scale, turn, head_dim, launch.eps);
    if (!active) continue;
    store_channels(static_cast<T*>(launch.q) + out + column, q_out);
    store_channels(static_cast<T*>(launch.k) + out + column, k_out);
    store_channels(static_cast<T*>(launch.v) + out + column, v);
  }
}

/// Sums one thread's channels over the groups of the block, in order, into row[0, head_dim).
template <int kLanes>
__device__ void sum_groups(const float (&values)[kChannels], float (*scratch)[kChannels], float* row,
                           int head_dim) {
  __syncthreads();  // scratch may still be read
#pragma unroll
  for (int i = 0; i < kChannels; ++i) scratch[threadIdx.x][i] = values[i];
  __syncthreads();
  for (int channel = threadIdx.x; channel < head_dim; channel += blockDim.x) {
    float sum = 0;
    for (int thread = channel / kChannels; thread < blockDim.x; thread += kLanes)
      sum += scratch[thread][channel % kChannels];
    row[channel] = sum;
  }
}

// Each block takes a run of tokens of the whole batch, so that it sums the gradients of the scales on the
// way.
template <typename T, int kLanes>
__global__ void __launch_bounds__(kMaxThreads, 5) backward(const QkNormRopeBackward launch) {
  const int channel = threadIdx.x % kLanes * kChannels, group = threadIdx.x / kLanes;
  const int groups = blockDim.x / kLanes;
  const bool in_row = channel < launch.head_dim;
  const int64_t width = launch.heads * launch.head_dim;
  const Raw<T> q_scale = load_channels(static_cast<const T*>(launch.q_scale) + channel, in_row);
  const Raw<T> k_scale = load_channels(static_cast<const T*>(launch.k_scale) + channel, in_row);
  const auto head_dim = static_cast<float>(launch.head_dim);
  const HeadStrides &dq = launch.grad_q_strides, &dk = launch.grad_k_strides, &dv = launch.grad_v_strides;
  float grad_q_scale[kChannels] = {}, grad_k_scale[kChannels] = {};

  for (int64_t row = blockIdx.x; row < launch.batch * launch.tokens; row += gridDim.x) {
    const int64_t batch = static_cast<uint32_t>(row) / static_cast<uint32_t>(launch.tokens);
    const int64_t token = row - batch * launch.tokens;
    const int64_t angle = token * (launch.head_dim / 2) + channel / 2;
    const Turn turn(launch.cos + angle, launch.sin + angle, in_row);
    const auto* qkv = static_cast<const T*>(launch.qkv) + row * launch.qkv_token_stride;
    const auto* grad_q = static_cast<const T*>(launch.grad_q) + batch * dq.batch + token * dq.token + channel;
    const auto* grad_k = static_cast<const T*>(launch.grad_k) + batch * dk.batch + token * dk.token + channel;
    const auto* grad_v = static_cast<const T*>(launch.grad_v) + batch * dv.batch + token * dv.token + channel;
    auto* grad_qkv = static_cast<T*>(launch.grad_qkv) + row * 3 * width;
    for (int64_t first = 0; first < launch.heads; first += groups) {
      const int64_t head = first + group;
      const bool active = in_row && head < launch.heads;
      const int64_t column = head * launch.head_dim + channel;
      const Raw<T> q = load_channels(qkv + column, active);
      const Raw<T> q_grad = load_channels(grad_q + head * dq.head, active);
      const Raw<T> k = load_channels(qkv + width + column, active);
      const Raw<T> k_grad = load_channels(grad_k + head * dk.head, active);
      const Raw<T> v_grad = load_channels(grad_v + head * dv.head, active);
      const Raw<T> q_out =
          norm_rope_backward<T, kLanes>(q, q_grad, q_scale, turn, head_dim, launch.eps, grad_q_scale);
      const Raw<T> k_out =
          norm_rope_backward<T, kLanes>(k, k_grad, k_scale, turn, head_dim, launch.eps, grad_k_scale);
      if (!active) continue;
      store_channels(grad_qkv + column, q_out);
      store_channels(grad_qkv + width + column, k_out);
      store_channels(grad_qkv + 2 * width + column, v_grad);
    }
  }

  if (!launch.partials) return;
  __shared__ float scratch[kMaxThreads][kChannels];
  float* partials = launch.partials + blockIdx.x * 2 * launch.head_dim;
  sum_groups<kLanes>(grad_q_scale, scratch, partials, static_cast<int>(launch.head_dim));
  sum_groups<kLanes>(grad_k_scale, scratch, partials + launch.head_dim, static_cast<int>(launch.head_dim));
}

/// Calls launch<T, kLanes>(threads): a power of two of lanes covers Dh, and the heads of a token are shared
/// evenly among the passes of its block (24 heads of 128: three passes of 8 heads).
template <typename Launch>
void with_head_shape(ElementType type, int64_t heads, int64_t head_dim, const Launch& launch) {
  with_type(type, [&]<typename T>() {
    const auto with_lanes = [&]<int kLanes>() {
      constexpr int64_t kMaxGroups = kMaxThreads / kLanes;
      const int64_t passes = (heads + kMaxGroups - 1) / kMaxGroups;
      launch.template operator()<T, kLanes>(threads_for((heads + passes - 1) / passes * kLanes, 1));
    };
    if (head_dim <= 2 * kChannels) {
      with_lanes.template operator()<2>();
    } else if (head_dim <= 4 * kChannels) {
      with_lanes.template operator()<4>();
    } else if (head_dim <= 8 * kChannels) {
      with_lanes.template operator()<8>();
    } else if (head_dim <= 16 * kChannels) {
      with_lanes.template operator()<16>();
    } else {
      with_lanes.template operator()<32>();
    }
  });
}

}  // namespace

void enqueue(const QkNormRopeForward& launch, Stream stream) {
  with_head_shape(launch.type, launch.heads, launch.head_dim, [&]<typename T, int kLanes>(int threads) {
    const dim3 grid(static_cast<unsigned>(launch.tokens), static_cast<unsigned>(launch.batch));
    forward<T, kLanes><<<grid, threads, 0, stream>>>(launch);
  });
}

void enqueue(const QkNormRopeBackward& launch, Stream stream) {
  with_head_shape(launch.type, launch.heads, launch.head_dim, [&]<typename T, int kLanes>(int threads) {
    const auto blocks = static_cast<unsigned>(head_parts(launch.batch, launch.tokens));
    backward<T, kLanes><<<blocks, threads, 0, stream>>>(launch);
  });
}

}  // namespace flowshard::kernels::cuda
