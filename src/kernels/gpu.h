// Whether there is a GPU that this build can use.
#pragma once

#include <c10/core/Device.h>

#include <string_view>

namespace flowshard::kernels {

/// Throws ConfigError if no GPU is visible, or if the CUDA kernels of this build are not compiled for GPU
/// `index`. `setting` is what asked for it: "run.device is \"cuda\"". A build without CUDA kernels runs on
/// every GPU that LibTorch knows.
void require_gpu(std::string_view setting, c10::DeviceIndex index = 0);

}  // namespace flowshard::kernels
