#include "flow_matching/schedule.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/json_config.h"

namespace flowshard::flow_matching {

ScheduleConfig ScheduleConfig::from_file(const std::filesystem::path& config_json) {
  const JsonConfig file(config_json);
  file.one_of("_class_name", {"FlowMatchEulerDiscreteScheduler"});
  for (const char* option : {"use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas",
                             "invert_sigmas", "stochastic_sampling"}) {
    if (file.boolean(option, false))
      file.reject(option, "FLUX.1 models do not use it and it is not supported");
  }
  file.one_of("time_shift_type", {"exponential"}, "exponential");
  ScheduleConfig config;
  config.use_dynamic_shifting = file.boolean("use_dynamic_shifting", false);
  config.shift = file.positive("shift", 1.0);
  config.base_shift = file.number("base_shift", 0.5);
  config.max_shift = file.number("max_shift", 1.15);
  config.base_image_seq_len = file.size("base_image_seq_len", 256);
  config.max_image_seq_len = file.size("max_image_seq_len", 4096);
  if (config.base_image_seq_len >= config.max_image_seq_len) {
    file.reject("base_image_seq_len", "it must be below max_image_seq_len");
  }
  return config;
}

double shift_mu(const ScheduleConfig& config, int64_t image_tokens) {
  const double slope = (config.max_shift - config.base_shift) /
                       static_cast<double>(config.max_image_seq_len - config.base_image_seq_len);
  return config.base_shift + slope * static_cast<double>(image_tokens - config.base_image_seq_len);
}

double time_shift(double mu, double t) { return std::exp(mu) / (std::exp(mu) + (1 / t - 1)); }

std::vector<float> get_schedule(const ScheduleConfig& config, int64_t num_steps, int64_t image_tokens) {
  const double mu = config.use_dynamic_shifting ? shift_mu(config, image_tokens) : std::log(config.shift);
  std::vector<float> sigmas;
  for (int64_t i = 0; i < num_steps; ++i) {
    // linspace(1, 1/N, N)
    const double t = 1.0 - static_cast<double>(i) / static_cast<double>(num_steps);
    sigmas.push_back(static_cast<float>(time_shift(mu, t)));
    if (!(sigmas.back() > 0 && sigmas.back() <= 1)) {
      throw ConfigError(
          "the scheduler's configuration gives the shift {:g} at {} tokens, and with it the sigma {}", mu,
          image_tokens, sigmas.back());
    }
  }
  sigmas.push_back(0.0f);
  return sigmas;
}

int64_t first_step(int64_t num_steps, double strength) {
  const auto n = static_cast<double>(num_steps);
  return static_cast<int64_t>(std::max(n - std::min(n * strength, n), 0.0));
}

}  // namespace flowshard::flow_matching
