#include "launcher/launch.h"

#include <unistd.h>

#include <map>
#include <random>

#include "core/error.h"
#include "launcher/attempt.h"
#include "launcher/console.h"
#include "launcher/endpoint.h"
#include "launcher/hardware.h"
#include "launcher/signals.h"

extern char** environ;

namespace flowshard::launcher {

namespace {

using Variables = std::map<std::string, std::string>;

Variables own_environment() {
  Variables variables;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text(*entry);
    const size_t equals = text.find('=');
    if (equals != std::string::npos) {
      variables[text.substr(0, equals)] = text.substr(equals + 1);
    }
  }
  return variables;
}

std::string draw_job_id() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

std::string host_name() {
  char name[256] = "?";
  gethostname(name, sizeof(name) - 1);
  return name;
}

constexpr int kMostNodes = 65'536;
constexpr int kSignalBase = 128;  // of the exit code of what ended by a signal

void check_options(const LaunchOptions& options) {
  if (options.command.empty()) {
    throw ConfigError("there is no command to launch: put it after --");
  }
  if (options.nodes < 1 || options.nodes > kMostNodes) {
    throw ConfigError("--nnodes {} is not between 1 and {}", options.nodes, kMostNodes);
  }
  if (options.node_rank < 0 || options.node_rank >= options.nodes) {
    throw ConfigError("--node_rank {} is not between 0 and {}", options.node_rank, options.nodes - 1);
  }
  if (options.nodes > 1 && options.endpoint.empty()) {
    throw ConfigError("--nnodes {} needs --rdzv_endpoint HOST:PORT of the host with --node_rank 0",
                      options.nodes);
  }
}

// The job as seen from this host: the same for every attempt.
class Job {
 public:
  explicit Job(const LaunchOptions& options) : options_(options) {
    if (!options.endpoint.empty()) {
      endpoint_ = parse_endpoint(options.endpoint);
    }
    const bool one_node = options.nodes == 1;
    if (!one_node && endpoint_.port == 0) {
      throw ConfigError("--rdzv_endpoint '{}': with several nodes the port must be given", options.endpoint);
    }
    if (options.node_rank == 0) {
      listener_ = listen_at(endpoint_, one_node);
    }
    if (one_node) {
      endpoint_.host = "127.0.0.1";
    }
    job_id_ = !options.job_id.empty() ? options.job_id : one_node ? draw_job_id() : "none";
  }

  std::vector<RankPlan> plans(int attempt) const {
    std::vector<RankPlan> plans;
    for (int local_rank = 0; local_rank < options_.processes_per_node; ++local_rank) {
      const int rank = options_.node_rank * options_.processes_per_node + local_rank;
      RankPlan plan{.rank = rank, .environment = {}, .inherited_fd = rank == 0 ? listener_.get() : -1};
      for (const auto& [name, value] : variables(rank, local_rank, attempt)) {
        plan.environment.push_back(name + '=' + value);
      }
      plans.push_back(std::move(plan));
    }
    return plans;
  }

 private:
  Variables variables(int rank, int local_rank, int attempt) const {
    Variables variables = own_environment();
    variables.emplace("OMP_NUM_THREADS",
                      std::to_string(std::max(1, num_cores() / options_.processes_per_node)));
    const Variables set{{"RANK", std::to_string(rank)},
                        {"LOCAL_RANK", std::to_string(local_rank)},
                        {"WORLD_SIZE", std::to_string(options_.nodes * options_.processes_per_node)},
                        {"LOCAL_WORLD_SIZE", std::to_string(options_.processes_per_node)},
                        {"GROUP_RANK", std::to_string(options_.node_rank)},
                        {"GROUP_WORLD_SIZE", std::to_string(options_.nodes)},
                        {"MASTER_ADDR", endpoint_.host},
                        {"MASTER_PORT", std::to_string(endpoint_.port)},
                        {"TORCHELASTIC_RESTART_COUNT", std::to_string(attempt)},
                        {"TORCHELASTIC_MAX_RESTARTS", std::to_string(options_.max_restarts)},
                        {"TORCHELASTIC_RUN_ID", job_id_},
                        {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                        {"FLOWSHARD_MASTER_LISTEN_FD", std::to_string(listener_.get())}};
    for (const auto& [name, value] : set) {
      variables[name] = value;
    }
    if (rank != 0) {
      variables.erase("FLOWSHARD_MASTER_LISTEN_FD");
    }
    return variables;
  }

  const LaunchOptions& options_;
  Endpoint endpoint_{"127.0.0.1", 0};
  FileDescriptor listener_;
  std::string job_id_;
};

std::string words(const AttemptResult::Failure& failure) {
  return fmt::format("rank {} on {} {}{}", failure.rank, host_name(), failure.status.words(),
                     failure.last_line.empty() ? "" : fmt::format("; its last line: {}", failure.last_line));
}

// A mistake in the configuration is there the next time too.
bool worth_a_restart(const AttemptResult& result) {
  return !result.stopped_by_signal && result.failure->status.code != static_cast<int>(ExitCode::kUsage);
}

}  // namespace

LaunchResult launch(const LaunchOptions& options) {
  check_options(options);
  const Job job(options);
  SignalReader signals;
  Console console(STDOUT_FILENO, STDERR_FILENO);
  for (int attempt = 0;; ++attempt) {
    const AttemptResult result = Attempt(options, job.plans(attempt), console).run(signals);
    if (!result.failure) {
      return {};
    }
    const std::string message = words(*result.failure);
    if (attempt == options.max_restarts || !worth_a_restart(result)) {
      const int code = result.failure->status.code;
      return {code, message, result.stopped_by_signal && code > kSignalBase};
    }
    console.line(Console::Stream::kErr, fmt::format("flowshard launch: {}: restarting all ranks ({} of {})",
                                                    message, attempt + 1, options.max_restarts));
  }
}

}  // namespace flowshard::launcher
