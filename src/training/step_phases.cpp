#include "training/step_phases.h"

#include <fmt/format.h>

#include "core/standard_streams.h"

namespace flowshard::training {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

void StepPhases::begin_step(int64_t step) {
  step_ = step;
  name_.clear();
  seconds_.clear();
  step_start_ = phase_start_ = Clock::now();
}

void StepPhases::begin(std::string_view name) {
  if (synchronize_) synchronize_();
  seconds_[name_] += seconds_since(phase_start_);
  phase_start_ = Clock::now();
  name_ = name;
  if (!log_prefix_.empty()) print_line("{}{}", log_prefix_, where());
}

double StepPhases::seconds(std::string_view name) const {
  const auto ended = seconds_.find(name);
  return (ended == seconds_.end() ? 0 : ended->second) + (name == name_ ? seconds_since(phase_start_) : 0);
}

double StepPhases::step_seconds() const { return seconds_since(step_start_); }

std::string StepPhases::where() const { return fmt::format("step {} ({})", step_, name_); }

}  // namespace flowshard::training
