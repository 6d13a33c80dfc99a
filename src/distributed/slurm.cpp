#include "distributed/slurm.h"

#include <limits>
#include <regex>
#include <sstream>

#include "core/error.h"

namespace flowshard::distributed {

namespace {

constexpr int kAny = std::numeric_limits<int>::max();
constexpr int kFirstPort = 20000;
constexpr int kPorts = 10000;

}  // namespace

std::string first_host(const std::string& node_list) {
  std::string host;
  for (size_t i = 0; i < node_list.size() && node_list[i] != ','; ++i) {
    if (node_list[i] != '[') {
      host += node_list[i];
      continue;
    }
    const size_t close = node_list.find(']', i);
    const std::string range = node_list.substr(i + 1, close - i - 1);
    host += range.substr(0, range.find_first_of("-,"));
    if (close == std::string::npos) {
      break;
    }
    i = close;
  }
  return host;
}

int tasks_on_node(const std::string& tasks_per_node, int node) {
  static const std::regex kPart(R"((\d{1,6})(\(x(\d{1,6})\))?)");
  std::istringstream parts(tasks_per_node);
  int first = 0;
  for (std::string part; std::getline(parts, part, ',');) {
    std::smatch match;
    if (!std::regex_match(part, match, kPart)) {
      break;
    }
    first += match[3].matched ? std::stoi(match[3]) : 1;
    if (node < first) {
      return std::stoi(match[1]);
    }
  }
  throw ConfigError("SLURM_STEP_TASKS_PER_NODE='{}' does not say how many tasks run on node {} of the step",
                    tasks_per_node, node);
}

Environment environment_of_slurm_task(const Variables& variables) {
  Environment environment;
  environment.world_size = variables.number("SLURM_NTASKS", 1, kAny);
  environment.rank = variables.number("SLURM_PROCID", 0, environment.world_size - 1);
  if (environment.world_size == 1) {
    return environment;
  }
  const int node = variables.number("SLURM_NODEID", 0, kAny);
  environment.local_world_size = tasks_on_node(variables.text("SLURM_STEP_TASKS_PER_NODE"), node);
  environment.local_rank = variables.number("SLURM_LOCALID", 0, environment.local_world_size - 1);

  const int job = variables.number("SLURM_JOB_ID", 0, kAny);
  const int step = variables.number("SLURM_STEP_ID", 0, kAny);
  environment.job_id = fmt::format("slurm-{}.{}", job, step);
  environment.master_addr = variables.has("MASTER_ADDR") ? variables.text("MASTER_ADDR")
                                                         : first_host(variables.text("SLURM_STEP_NODELIST"));
  environment.master_port = variables.has("MASTER_PORT") ? variables.number("MASTER_PORT", 1, 65535)
                                                         : kFirstPort + (job + step) % kPorts;
  return environment;
}

}  // namespace flowshard::distributed
