// Which changes of a configuration would make a run's memory smaller, and by how much.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "training/memory_estimate.h"

namespace flowshard::training {

struct MemoryAdvice {
  std::string setting;      // "memory.activation_checkpointing=full"
  int64_t saved_bytes = 0;  // of a rank's device
};

/// The changes that help, each alone, the one that saves most first; at most `limit`.
std::vector<MemoryAdvice> advise_memory(const TrainConfig& config, const ModelSizes& model,
                                        const JobSize& job, size_t limit = 3);

/// "memory.activation_checkpointing=full saves 28.06 GiB, ..."; "" without advice.
std::string to_text(const std::vector<MemoryAdvice>& advice);

}  // namespace flowshard::training
