#include "generate_report.h"

#include <fmt/format.h>

#include <cstdio>

namespace flowshard::apps {
namespace {

constexpr double kLogEverySeconds = 30;

}  // namespace

GenerateReport::GenerateReport(size_t num_pictures, int64_t num_steps, bool json)
    : num_pictures_(num_pictures),
      json_(json),
      progress_(std::cerr, {.num_steps = num_steps,
                            .log_every_seconds = kLogEverySeconds,
                            .columns = telemetry::stderr_columns()}) {}

void GenerateReport::step(size_t picture) {
  const Clock::time_point now = Clock::now();
  progress_.update(++steps_, std::chrono::duration<double>(now - last_step_).count(),
                   fmt::format("image {}/{}", picture + 1, num_pictures_));
  last_step_ = now;
}

void GenerateReport::made(size_t picture, const inference::PlannedPicture& planned,
                          const inference::PictureSettings& settings, double seconds) {
  if (json_) return print_json(planned, settings, seconds, "made");
  print(fmt::format("[{}/{}] {} ({}x{}, seed {}, {:.2f} s)", picture + 1, num_pictures_,
                    planned.file.string(), planned.request.height, planned.request.width,
                    planned.request.seed, seconds));
}

void GenerateReport::skipped(size_t picture, const inference::PlannedPicture& planned,
                             const inference::PictureSettings& settings) {
  if (json_) return print_json(planned, settings, 0, "skipped");
  print(fmt::format("[{}/{}] {}: skipped, it is there already with these settings", picture + 1,
                    num_pictures_, planned.file.string()));
}

void GenerateReport::print(const std::string& line) {
  progress_.hide();
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

void GenerateReport::print_json(const inference::PlannedPicture& planned,
                                const inference::PictureSettings& settings, double seconds,
                                const char* status) {
  nlohmann::ordered_json line;
  line["file"] = planned.file.string();
  line["status"] = status;
  line["seconds"] = seconds;
  line.update(settings.to_json(planned.format));
  print(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace flowshard::apps
