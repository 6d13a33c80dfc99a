// What an optimizer step is doing, for the message of an error, and how long that took, for the record of the
// step. Used by one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace flowshard::training {

/// The phases whose times are recorded.
inline constexpr std::string_view kLoadingPhase = "loading a batch", kEncodingPhase = "encoding a batch",
                                  kSavingPhase = "saving a checkpoint", kValidationPhase = "validation";

class StepPhases {
 public:
  /// `log_prefix`: what begins is also a line on stderr, after this; empty: it is not.
  explicit StepPhases(std::string log_prefix = "") : log_prefix_(std::move(log_prefix)) {}
  /// `synchronize` waits for the device at the end of every phase, so that each pays for its own work.
  explicit StepPhases(std::function<void()> synchronize) : synchronize_(std::move(synchronize)) {}

  /// Times start from zero.
  void begin_step(int64_t step);

  /// "forward pass", ...: what is done from now on. Ends the phase before it. A step may return to a phase.
  void begin(std::string_view name);

  /// Seconds of this step in the phase, and since the step began. On a GPU the time until the work is queued:
  /// the phases that wait for its results pay for it.
  double seconds(std::string_view name) const;
  double step_seconds() const;
  /// Of every phase that has ended, by name.
  const std::map<std::string, double, std::less<>>& all_seconds() const { return seconds_; }

  /// "step 12 (forward pass)"
  std::string where() const;

 private:
  using Clock = std::chrono::steady_clock;

  std::string log_prefix_;
  std::function<void()> synchronize_;
  int64_t step_ = 0;
  std::string name_;
  Clock::time_point step_start_, phase_start_;
  std::map<std::string, double, std::less<>> seconds_;  // of phases that have ended, by name
};

}  // namespace flowshard::training
