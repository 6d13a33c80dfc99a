// Whether there is a GPU that this build can use.
#pragma once

#include <c10/core/Device.h>

#include <string_view>

namespace flowshard::kernels {

/// Throws ConfigError if no GPU is visible. `setting` is what asked for it: "run.device is cuda". Uses none.
void require_gpu(std::string_view setting);

/// Throws ConfigError if the CUDA kernels of this build are not compiled for `gpu`, which is used from then
/// on: a rank asks for its own alone. A build without CUDA kernels runs on every GPU that LibTorch knows.
void require_kernels(std::string_view setting, c10::Device gpu);

}  // namespace flowshard::kernels
