// What a training run will take of memory and disk, from its configuration and the sizes of its model alone:
// arithmetic, no GPU. The same numbers serve `flowshard plan`, the check after the first step and the advice
// when memory runs out. docs/memory.md says where they come from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "training/train_config.h"

namespace flowshard::training {

/// Numbers of values; the defaults are FLUX.1-dev's.
struct ModelSizes {
  int64_t hidden_size = 3072;
  int64_t mlp_hidden_dim = 12288;
  int64_t in_channels = 64;
  int64_t context_in_dim = 4096;
  // Parameters of the transformer.
  int64_t root = 64'124'992;
  int64_t double_block = 339'831'296;
  int64_t single_block = 141'591'808;
  int64_t num_double_blocks = 19;
  int64_t num_single_blocks = 38;
  // Parameters of the frozen parts.
  int64_t text_encoders = 4'885'371'136;
  int64_t autoencoder = 83'819'683;
  int64_t autoencoder_width = 128;  // channels at full resolution
  int64_t downsampling = 8;

  int64_t transformer() const {
    return root + num_double_blocks * double_block + num_single_blocks * single_block;
  }
  int64_t largest_block() const;
  /// Text and image tokens of one sample.
  int64_t tokens(const TrainConfig& config) const;
};

/// The ranks of a job.
struct JobSize {
  int64_t num_ranks = 1;
  int64_t ranks_per_host = 8;
};

/// One part of an estimate.
struct MemoryItem {
  std::string name;
  int64_t bytes = 0;
};

struct MemoryEstimate {
  // Of one rank's device. What is resident is there always; of the phases' needs only the largest counts.
  std::vector<MemoryItem> resident, phases;
  int64_t context_bytes = 0;  // of the driver and its libraries, outside our allocator; 0 on a CPU
  /// The most that tensors take at once, and that with the context.
  int64_t tensors() const;
  int64_t device() const { return tensors() + context_bytes; }

  std::vector<MemoryItem> host;  // of one host, beside the device's if the device is a CPU
  int64_t host_bytes() const;

  int64_t checkpoint_bytes = 0;  // of one checkpoint, all ranks
  int64_t disk_bytes = 0;        // while the newest is written and the others are kept
};

MemoryEstimate estimate_memory(const TrainConfig& config, const ModelSizes& model, const JobSize& job);

/// How many ranks hold one copy of parameters, gradients and optimizer state together.
int64_t shard_count(const TrainConfig& config, const JobSize& job);

/// "12.3 GiB"
std::string gibibytes(int64_t bytes);

}  // namespace flowshard::training
