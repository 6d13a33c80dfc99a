#include "telemetry/progress_reporter.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ostream>

namespace flowshard::telemetry {
namespace {

/// "1h 02m", "3m 07s", "12s"
std::string duration_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole >= 3600) return fmt::format("{}h {:02}m", whole / 3600, whole / 60 % 60);
  if (whole >= 60) return fmt::format("{}m {:02}s", whole / 60, whole % 60);
  return fmt::format("{}s", whole);
}

/// Rates below one step a second are easier to read as seconds.
std::string rate_text(double seconds_per_step) {
  return seconds_per_step < 1.0 ? fmt::format("{:.1f} steps/s", 1.0 / seconds_per_step)
                                : fmt::format("{:.2f} s/step", seconds_per_step);
}

}  // namespace

int stderr_columns() {
  winsize size = {};
  if (::isatty(STDERR_FILENO) == 0 || ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col > 0 ? size.ws_col : 80;
}

ProgressReporter::ProgressReporter(std::ostream& out, const Options& options)
    : out_(out), options_(options) {}

ProgressReporter::~ProgressReporter() {
  if (is_drawn_) out_ << '\n' << std::flush;
}

void ProgressReporter::update(const StepRecord& record) {
  update(record.step, record.step_seconds,
         fmt::format("loss {:.4f}  grad_norm {:.3f}  lr {:.2e}", record.loss, record.grad_norm, record.lr));
}

void ProgressReporter::update(int64_t step, double step_seconds, std::string_view details) {
  ++num_updates_;
  // A running mean that follows changes (another length, a busy machine) within a few dozen steps.
  mean_seconds_ += (step_seconds - mean_seconds_) / static_cast<double>(std::min<int64_t>(num_updates_, 32));
  unshown_seconds_ += step_seconds;
  const int64_t left = std::max<int64_t>(options_.num_steps - step, 0);
  const int64_t percent = options_.num_steps > 0 ? step * 100 / options_.num_steps : 0;
  line_ = fmt::format("step {}/{} {:3}%  {}  {}  ends in {}", step, options_.num_steps, percent, details,
                      rate_text(mean_seconds_), duration_text(mean_seconds_ * static_cast<double>(left)));

  const bool is_first_or_last = num_updates_ == 1 || left == 0;
  if (options_.columns > 0) {
    if (unshown_seconds_ >= 0.1 || is_first_or_last) draw();
    return;
  }
  const bool is_due = options_.log_every_seconds > 0
                          ? unshown_seconds_ >= options_.log_every_seconds
                          : step % options_.log_every_steps == 0 || is_first_or_last;
  if (!is_due) return;
  out_ << line_ << '\n' << std::flush;
  unshown_seconds_ = 0.0;
}

void ProgressReporter::hide() {
  if (is_drawn_) out_ << "\r\x1b[K" << std::flush;
  is_drawn_ = false;
}

void ProgressReporter::message(std::string_view text) {
  if (is_drawn_) out_ << "\r\x1b[K";
  out_ << text << '\n' << std::flush;
  if (is_drawn_) draw();
}

void ProgressReporter::draw() {
  // One column stays free: a full line would make some terminals wrap, and the next redraw start a line
  // lower.
  const auto width = static_cast<size_t>(options_.columns - 1);
  out_ << '\r' << line_.substr(0, width) << "\x1b[K" << std::flush;
  is_drawn_ = true;
  unshown_seconds_ = 0.0;
}

}  // namespace flowshard::telemetry
