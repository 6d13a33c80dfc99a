// What the dispatch files share: which tensors the CUDA kernels take, and how a launch reaches the GPU.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include "kernels/launch.h"

namespace flowshard::kernels::cuda {

/// Whether this build has the CUDA kernels.
bool compiled();

/// Whether the CUDA kernels take `tensor`: bf16 or fp32 on a GPU.
inline bool takes(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  return compiled() && tensor.is_cuda() && (type == at::kBFloat16 || type == at::kFloat);
}

inline ElementType element_type(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat ? ElementType::kFloat32 : ElementType::kBFloat16;
}

inline bool is_aligned(const at::Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0;
}

/// `tensor` itself if a kernel can read it, otherwise a dense copy.
inline at::Tensor dense(const at::Tensor& tensor) {
  const at::Tensor contiguous = tensor.contiguous();
  return is_aligned(contiguous) ? contiguous : contiguous.clone();
}

inline at::Tensor empty_float(const at::Tensor& like, at::IntArrayRef shape) {
  return at::empty(shape, like.options().dtype(at::kFloat));
}

inline float* float_data(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr;
}

/// The current stream of GPU `index`.
Stream current_stream(c10::DeviceIndex index);

/// Throws if the last launch of this thread failed.
void check_launch();

template <typename Launch>
void run(const Launch& launch, at::Device device) {
  const c10::DeviceGuard guard(device);
  enqueue(launch, current_stream(device.index()));
  check_launch();
}

/// Sums partials [B, parts, columns] over parts ([Note: repeatable sums]) into first [B, split] and second
/// [B, columns - split].
inline void sum_columns(const at::Tensor& partials, const at::Tensor& first, const at::Tensor& second = {}) {
  const int64_t batch = partials.size(0);
  run(SumColumns{.type = element_type(first),
                 .partials = float_data(partials),
                 .first = first.mutable_data_ptr(),
                 .second = second.defined() ? second.mutable_data_ptr() : nullptr,
                 .batch = batch,
                 .parts = partials.size(1),
                 .columns = partials.size(2),
                 .split = first.numel() / batch},
      partials.device());
}

}  // namespace flowshard::kernels::cuda
