// The noise levels (sigmas) that sampling visits, and the resolution-dependent shift of FLUX.
// Reference: https://github.com/black-forest-labs/flux src/flux/sampling.py (time_shift, get_schedule) and
// diffusers' FlowMatchEulerDiscreteScheduler, whose scheduler_config.json fields these are.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace flowshard::flow_matching {

struct ScheduleConfig {
  bool use_dynamic_shifting = true;  // FLUX.1-dev; false for -schnell
  double shift = 1.0;                // used if use_dynamic_shifting is false
  double base_shift = 0.5;
  double max_shift = 1.15;
  int64_t base_image_seq_len = 256;
  int64_t max_image_seq_len = 4096;

  /// Reads a diffusers scheduler/scheduler_config.json. Throws ConfigError if the file is unreadable, or asks
  /// for another scheduler or an option (Karras sigmas, ...) that FLUX models do not use.
  static ScheduleConfig from_file(const std::filesystem::path& config_json);
};

/// mu for `image_tokens` tokens: the line through (base_image_seq_len, base_shift) and (max_image_seq_len,
/// max_shift), not clamped beyond them.
double shift_mu(const ScheduleConfig& config, int64_t image_tokens);

/// e^mu / (e^mu + 1/t - 1): moves time t in (0, 1] towards noise.
double time_shift(double mu, double t);

/// num_steps + 1 decreasing sigmas from 1 to 0 (the last is 0). Throws ConfigError if the shift is so large
/// that a sigma is no number above 0.
std::vector<float> get_schedule(const ScheduleConfig& config, int64_t num_steps, int64_t image_tokens);

/// How many of the steps image to image leaves out, by diffusers' rule: none at strength 1, all at strength
/// 0.
int64_t first_step(int64_t num_steps, double strength);

}  // namespace flowshard::flow_matching
