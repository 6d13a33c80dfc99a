// How much memory a device has free and how much of it is used, for GPUs and for the host.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace flowshard::inference {

/// Bytes that this process could still take. Of a GPU: what the driver has free and what our allocator holds
/// unused. Of the host: what the kernel can give without swapping.
int64_t free_memory(c10::Device device);

/// Gives back to the driver what our allocator holds unused. Nothing on a CPU.
void release_unused_memory(c10::Device device);

/// Waits for all work of a GPU.
void synchronize(c10::Device device);

/// The most bytes of a GPU in use by tensors since the last reset; 0 on a CPU.
void reset_peak_memory(c10::Device device);
int64_t peak_memory(c10::Device device);

}  // namespace flowshard::inference
