// What is known about one optimizer step.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace flowshard::telemetry {

struct StepRecord {
  int64_t step = 0;          // 1 after the first optimizer step
  int64_t samples_seen = 0;  // by all ranks since the run began
  double loss = 0.0;         // mean over the samples of the step, all ranks
  double grad_norm = 0.0;    // global, before clipping
  double lr = 0.0;
  double step_seconds = 0.0;

  /// Further numbers by name, written after those above. Names are valid UTF-8 and none of those above.
  std::vector<std::pair<std::string, double>> extras = {};
};

}  // namespace flowshard::telemetry
