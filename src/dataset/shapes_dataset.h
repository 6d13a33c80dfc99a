// Writes the coloured-shapes data set: WebDataset shards for training and the prompts for its evaluation.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

namespace flowshard::dataset {

struct ShapesDatasetOptions {
  std::filesystem::path output;  // a folder; created if absent
  int64_t num_samples = 8192;
  int64_t samples_per_shard = 1024;
  uint64_t seed = 0;
  int num_single_prompts = 100;
  int num_pair_prompts = 200;
};

struct ShapesDatasetSummary {
  int64_t num_samples = 0;
  int64_t num_pairs = 0;
  int64_t num_shards = 0;
};

/// Writes shapes-000000.tar, ... (KEY.png, KEY.txt, KEY.json for each sample) and heldout.jsonl, each
/// published by rename; the same options give the same bytes. `progress` is called after each shard with the
/// number of samples written. Throws ConfigError for options out of range and for an output folder with
/// shards that would not be replaced, DataError if a file cannot be written.
ShapesDatasetSummary write_shapes_dataset(const ShapesDatasetOptions& options,
                                          const std::function<void(int64_t)>& progress = nullptr);

}  // namespace flowshard::dataset
