// Where training stood when a checkpoint was written. Plain data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace flowshard::checkpoint {

struct TrainingState {
  int64_t step = 0;  // optimizer steps done since the first start, over all resumes
  int64_t samples_seen = 0;
  std::string run_id;                               // chosen at the first start, kept by every resume
  std::string config;                               // TOML
  std::string model_path;                           // the base model, for the parts that are not trained
  nlohmann::json extra = nlohmann::json::object();  // the trainer's own: data position, schedule, ...

  bool operator==(const TrainingState&) const = default;
};

std::string to_text(const TrainingState& state);

/// Throws CheckpointError.
TrainingState read_training_state(const std::filesystem::path& path);

}  // namespace flowshard::checkpoint
