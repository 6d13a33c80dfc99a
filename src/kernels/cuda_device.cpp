#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include "kernels/device.h"

namespace flowshard::kernels::cuda {

bool compiled() { return true; }

Stream current_stream(c10::DeviceIndex index) { return c10::cuda::getCurrentCUDAStream(index).stream(); }

void check_launch() { C10_CUDA_KERNEL_LAUNCH_CHECK(); }

}  // namespace flowshard::kernels::cuda
