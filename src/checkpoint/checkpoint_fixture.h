// For tests: a small model as flat groups, and saving it with threads as ranks.
#pragma once

#include <algorithm>
#include <barrier>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_save.h"
#include "checkpoint/safetensors.h"

namespace flowshard::checkpoint {

/// Shapes that no number of ranks divides: 5 rows, 1 row, a scalar scale; and a group smaller than the ranks.
inline std::vector<GroupLayout> tiny_layouts(int64_t num_shards) {
  std::vector<GroupLayout> groups = {
      {.name = "", .entries = {{"img_in.weight", {5, 2}, 0}, {"img_in.bias", {1, 3}, 10}}, .numel = 13},
      {.name = "double_blocks.0",
       .entries = {{"double_blocks.0.proj.weight", {3, 4, 2}, 0}, {"double_blocks.0.scale", {7}, 24}},
       .numel = 31},
      {.name = "final", .entries = {{"final.bias", {1}, 0}}, .numel = 1}};
  for (GroupLayout& group : groups) {
    group.padded_numel = (group.numel + num_shards - 1) / num_shards * num_shards;
  }
  return groups;
}

/// The states of the tiny model and how they are stored.
inline const std::vector<StateLayout> kTinyStates = {{"model", at::kFloat}, {"exp_avg", at::kBFloat16}};

/// The whole flat buffer of a state in fp32, padding included; every element of a state differs, and is exact
/// in the dtype of the state.
inline at::Tensor tiny_flat(const GroupLayout& group, const std::string& state) {
  at::Tensor flat = at::zeros({group.padded_numel}, at::kFloat);
  const auto start =
      static_cast<double>(state == "model" ? 5000 + 100 * group.name.size() : 10 * group.name.size());
  flat.narrow(0, 0, group.numel).copy_(at::arange(start, start + static_cast<double>(group.numel)));
  return flat;
}

inline std::vector<GroupShards> tiny_shards(int64_t rank, int64_t num_shards, double shift = 0) {
  std::vector<GroupShards> groups;
  for (const GroupLayout& layout : tiny_layouts(num_shards)) {
    groups.push_back({layout, {}});
    const int64_t shard_numel = layout.padded_numel / num_shards;
    for (const auto& [state, dtype] : kTinyStates) {
      const at::Tensor shard = tiny_flat(layout, state).narrow(0, rank * shard_numel, shard_numel);
      groups.back().states.emplace_back(state, (shard + shift).to(dtype));
    }
  }
  return groups;
}

inline TrainingState tiny_state(int64_t step, std::string run_id = "run") {
  return {.step = step,
          .samples_seen = 32 * step,
          .run_id = std::move(run_id),
          .config = "[run]\nseed = 7\n",
          .model_path = "models/tiny",
          .extra = {{"epoch", 3}}};
}

inline Progress alone(Progress own) { return own; }

/// Saves the tiny model with one rank.
inline void save_alone(const std::filesystem::path& folder, const TrainingState& state, int64_t keep = 0,
                       const Agree& agree = alone) {
  CheckpointSave({.folder = folder, .rank = 0, .num_shards = 1, .keep = keep}, tiny_shards(0, 1), state)
      .wait(agree);
}

/// Saves the tiny model with each of `options` on a thread of its own. Returns what each threw, or "".
inline std::vector<std::string> save_with_threads(const std::vector<SaveOptions>& options,
                                                  const TrainingState& state) {
  std::vector<std::string> errors(options.size());
  std::vector<Progress> votes(options.size());
  std::barrier<> barrier(static_cast<ptrdiff_t>(options.size()));
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < options.size(); ++rank) {
    threads.emplace_back([&, rank] {
      const Agree agree = [&](Progress own) {
        votes[rank] = own;
        barrier.arrive_and_wait();
        const Progress all = *std::ranges::max_element(votes);
        barrier.arrive_and_wait();
        return all;
      };
      try {
        const int64_t num_shards = options[rank].num_shards;
        const int64_t shard = std::min(options[rank].rank, num_shards - 1);
        CheckpointSave(options[rank], tiny_shards(shard, num_shards), state).wait(agree);
      } catch (const std::exception& error) {
        errors[rank] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

inline std::vector<SaveOptions> options_of_ranks(const std::filesystem::path& folder, int64_t num_ranks,
                                                 int64_t num_shards) {
  std::vector<SaveOptions> options;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    options.push_back({.folder = folder, .rank = rank, .num_shards = num_shards});
  }
  return options;
}

}  // namespace flowshard::checkpoint
