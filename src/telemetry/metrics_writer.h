// OUTPUT_DIR/metrics.jsonl: one JSON object a line and an optimizer step, in order of steps, no step twice.
// Numbers read back to the same bits. JSON has no NaN or infinity: such a number is null, and the object then
// has a key "non_finite" that says which: {"loss": null, ..., "non_finite": {"loss": "nan"}} ("nan", "inf" or
// "-inf"). One writer a file (rank 0), which locks it; used by one thread.
#pragma once

#include <cstdint>
#include <filesystem>

#include "core/file_descriptor.h"
#include "telemetry/step_record.h"

namespace flowshard::telemetry {

class MetricsWriter {
 public:
  /// Opens or creates `path` (its folder exists). A run that continues after `resume_step` drops the records
  /// of later steps, which it will write again, and a last line that a kill cut short; 0 drops everything.
  /// The file is cut once, so that it is whole whenever the process dies. Throws DataError if the file cannot
  /// be written, or if a line to be kept is no step record of a step above the one before it; ConfigError,
  /// the file untouched, while another writer has it.
  explicit MetricsWriter(const std::filesystem::path& path, int64_t resume_step = 0);

  /// Appends one line and hands it to the system: a kill of the process after the call does not lose it.
  /// Throws DataError (no space) and leaves only whole lines. record.step must be above the last one written.
  /// If the file at `path` is not ours any more (moved or removed, or its folder), warns on stderr and goes
  /// on in a new one there; throws ConfigError if another writer has that.
  void write(const StepRecord& record);

 private:
  void follow_path(int64_t step);

  std::filesystem::path path_;
  FileDescriptor file_;
  int64_t size_bytes_ = 0;
  int64_t last_step_ = 0;
};

}  // namespace flowshard::telemetry
