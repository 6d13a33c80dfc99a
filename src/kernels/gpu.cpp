#include "kernels/gpu.h"

#include <ATen/Context.h>

#include "core/error.h"
#include "kernels/device.h"

namespace flowshard::kernels {

void require_gpu(std::string_view setting) {
  if (!at::hasCUDA()) throw ConfigError("{}, but no CUDA device is visible: use cpu", setting);
}

void require_kernels(std::string_view setting, c10::Device gpu) {
  const c10::DeviceGuard guard(gpu);
  if (!cuda::compiled() || cuda::has_code_for_device()) return;
  throw ConfigError(
      "{}, but this build has no kernels for GPU {}: build it with the compute capability of the GPU, here "
      "of "
      "an A100: cmake build/release -DCMAKE_CUDA_ARCHITECTURES=80-real",
      setting, static_cast<int>(gpu.index()));
}

}  // namespace flowshard::kernels
