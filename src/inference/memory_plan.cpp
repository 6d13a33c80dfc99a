#include "inference/memory_plan.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace flowshard::inference {
namespace {

double gigabytes(int64_t bytes) { return static_cast<double>(bytes) / 1e9; }

/// Weights of the transformer on the device: what is resident, and two buffers of the largest streamed block.
int64_t transformer_on_device(const WeightBytes& weights, size_t num_resident) {
  if (num_resident == weights.blocks.size()) return weights.transformer();
  int64_t resident = weights.outside_blocks, largest_streamed = 0;
  for (size_t i = 0; i < weights.blocks.size(); ++i) {
    if (is_streamed(i, weights.blocks.size(), num_resident)) {
      largest_streamed = std::max(largest_streamed, weights.blocks[i]);
    } else {
      resident += weights.blocks[i];
    }
  }
  return resident + 2 * largest_streamed;
}

}  // namespace

int64_t WeightBytes::transformer() const {
  return std::accumulate(blocks.begin(), blocks.end(), outside_blocks + modulations);
}

int64_t MemoryPlan::peak() const { return std::max({encode, denoise, decode}); }

bool is_streamed(size_t i, size_t num_blocks, size_t num_resident) {
  const size_t num_streamed = num_blocks - num_resident;
  return (i + 1) * num_streamed / num_blocks != i * num_streamed / num_blocks;
}

MemoryPlan plan_memory(const WeightBytes& weights, const WorkBytes& work, LowMemory mode,
                       int64_t free_bytes) {
  const auto with = [&](int64_t encode, int64_t transformer, size_t num_resident) {
    return MemoryPlan{.encode = encode + weights.autoencoder + work.encode,
                      .denoise = transformer + weights.autoencoder + work.denoise,
                      .decode = transformer + weights.autoencoder + work.decode,
                      .num_resident = num_resident};
  };
  const size_t all = weights.blocks.size();
  if (mode == LowMemory::kNone) {
    const int64_t both = weights.text_encoders + weights.transformer();
    return with(both, both, all);
  }
  if (mode == LowMemory::kEncoders) return with(weights.text_encoders, weights.transformer(), all);
  size_t num_resident = all;
  MemoryPlan plan;
  do {
    plan = with(weights.text_encoders, transformer_on_device(weights, num_resident), num_resident);
  } while (plan.peak() > free_bytes && num_resident-- > 0);
  return plan;
}

void require_fit(const MemoryPlan& plan, const WeightBytes& weights, const WorkBytes& work,
                 int64_t free_bytes, const std::string& model, c10::Device device) {
  if (plan.peak() <= free_bytes) return;
  std::string advice;
  for (const auto& [mode, name] :
       {std::pair{LowMemory::kEncoders, "encoders"}, {LowMemory::kBlocks, "blocks"}}) {
    if (mode == LowMemory::kBlocks && device.is_cpu()) continue;
    const int64_t peak = plan_memory(weights, work, mode, free_bytes).peak();
    if (peak <= free_bytes) advice += fmt::format(" --low-memory {} needs {:.1f} GB.", name, gigabytes(peak));
  }
  throw ConfigError(
      "{}: it does not fit into the memory of {}, of which {:.1f} GB are free: encoding text takes {:.1f} "
      "GB, "
      "denoising {:.1f} GB, decoding {:.1f} GB (weights: text encoders {:.1f}, transformer {:.1f}, "
      "autoencoder "
      "{:.1f} GB).{}",
      model, device.str(), gigabytes(free_bytes), gigabytes(plan.encode), gigabytes(plan.denoise),
      gigabytes(plan.decode), gigabytes(weights.text_encoders), gigabytes(weights.transformer()),
      gigabytes(weights.autoencoder),
      advice.empty() ? " Make smaller pictures, or use another device." : advice);
}

}  // namespace flowshard::inference
