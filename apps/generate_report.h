// What `flowshard generate` says while it works: a line on stdout for each picture (text or JSON), progress
// on stderr.
#pragma once

#include <chrono>
#include <cstdint>
#include <iostream>
#include <string>

#include "inference/picture_plan.h"
#include "inference/picture_settings.h"
#include "telemetry/progress_reporter.h"

namespace flowshard::apps {

class GenerateReport {
 public:
  /// `num_steps` of all pictures that will be made.
  GenerateReport(size_t num_pictures, int64_t num_steps, bool json);

  /// One more step of the picture with this number (from 0) is made.
  void step(size_t picture);

  void made(size_t picture, const inference::PlannedPicture& planned,
            const inference::PictureSettings& settings, double seconds);
  void skipped(size_t picture, const inference::PlannedPicture& planned,
               const inference::PictureSettings& settings);

 private:
  using Clock = std::chrono::steady_clock;
  void print(const std::string& line);
  void print_json(const inference::PlannedPicture& planned, const inference::PictureSettings& settings,
                  double seconds, const char* status);

  size_t num_pictures_;
  bool json_;
  telemetry::ProgressReporter progress_;
  int64_t steps_ = 0;
  Clock::time_point last_step_ = Clock::now();
};

}  // namespace flowshard::apps
