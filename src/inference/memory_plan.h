// Whether a model fits into the memory of a device, and how: known from sizes alone, before anything loads.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace flowshard::inference {

/// What stays on the device.
enum class LowMemory {
  kNone,      // everything
  kEncoders,  // the text encoders only while they encode, the transformer only while it denoises
  kBlocks,    // as kEncoders; and of the transformer as many blocks as fit, the others come from the host
};

/// Bytes of weights.
struct WeightBytes {
  int64_t text_encoders = 0, autoencoder = 0;
  int64_t outside_blocks = 0;   // of the transformer
  std::vector<int64_t> blocks;  // in the order of execution, without modulations
  int64_t modulations = 0;      // of all blocks: needed once for a picture, not in every step
  int64_t transformer() const;
};

/// Bytes that each phase needs beside weights, for the largest picture.
struct WorkBytes {
  int64_t encode = 0, denoise = 0, decode = 0;
};

/// Bytes in use at the peak of each phase.
struct MemoryPlan {
  int64_t encode = 0, denoise = 0, decode = 0;
  size_t num_resident = 0;  // blocks that stay on the device; modulations do if all blocks do
  int64_t peak() const;
};

MemoryPlan plan_memory(const WeightBytes& weights, const WorkBytes& work, LowMemory mode, int64_t free_bytes);

/// Throws ConfigError with the numbers, and the modes that would fit on this device, if the plan's peak is
/// above `free_bytes`. `model` is for the message.
void require_fit(const MemoryPlan& plan, const WeightBytes& weights, const WorkBytes& work,
                 int64_t free_bytes, const std::string& model, c10::Device device);

/// Whether block `i` of `num_blocks` is streamed when `num_resident` stay: spread evenly, so that while
/// resident blocks compute, the next streamed one has time to arrive.
bool is_streamed(size_t i, size_t num_blocks, size_t num_resident);

}  // namespace flowshard::inference
