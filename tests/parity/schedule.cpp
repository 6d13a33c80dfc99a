// schedule FOLDER: the sigmas of a scheduler folder; options `steps` and `tokens`.
#include "flow_matching/schedule.h"

#include "parity.h"

namespace flowshard::parity {

Result schedule(const Request& request) {
  const std::filesystem::path folder = request.arguments.at(0);
  const auto config = flow_matching::ScheduleConfig::from_file(folder / "scheduler_config.json");
  const auto sigmas =
      flow_matching::get_schedule(config, request.options.at("steps"), request.options.at("tokens"));
  return {.tensors = {{"sigmas", at::tensor(sigmas)}}, .metadata = {}};
}

}  // namespace flowshard::parity
