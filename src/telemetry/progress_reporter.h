// The progress of a run for a person: on a terminal one line that is rewritten in place, in a log one plain
// line every so many steps or seconds. Only rank 0 makes one; used by one thread.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>

#include "telemetry/step_record.h"

namespace flowshard::telemetry {

/// Columns of the terminal that standard error is, 0 if it is none.
int stderr_columns();

class ProgressReporter {
 public:
  struct Options {
    int64_t num_steps = 0;         // of the whole run
    int64_t log_every_steps = 10;  // in a log; the first and the last step are always shown
    double log_every_seconds = 0;  // above 0: in a log instead, so that a short run shows nothing
    int columns = 0;               // of the terminal, 0: a log
  };

  ProgressReporter(std::ostream& out, const Options& options);
  ~ProgressReporter();  // leaves the cursor at the start of a fresh line
  ProgressReporter(const ProgressReporter&) = delete;
  ProgressReporter& operator=(const ProgressReporter&) = delete;

  /// Shows that `step` steps are made, the last in so many seconds. A terminal is redrawn at most ten times a
  /// second, by the times told.
  void update(int64_t step, double step_seconds, std::string_view details);
  void update(const StepRecord& record);  // of training

  /// A line of its own ("saved step-00000200"), above the progress line.
  void message(std::string_view text);

  /// Takes the line off the terminal until the next update: something else writes there.
  void hide();

 private:
  void draw();

  std::ostream& out_;
  Options options_;
  std::string line_;  // the newest progress line
  int64_t num_updates_ = 0;
  double mean_seconds_ = 0.0;     // of a step, over about the last 32
  double unshown_seconds_ = 0.0;  // since the last line
  bool is_drawn_ = false;         // the cursor stands behind a progress line
};

}  // namespace flowshard::telemetry
