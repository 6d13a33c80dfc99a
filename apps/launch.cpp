// flowshard launch: the ranks of a job as processes of this host.
#include "launcher/launch.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/standard_streams.h"
#include "launcher/hardware.h"
#include "number_between.h"
#include "subcommands.h"

namespace flowshard::apps {

namespace {

constexpr const char* kFooter = R"(
Every rank runs this program with the command after --. The options can be written with - or _ and mean what they
mean to torchrun. Rank 0's lines appear as they are, those of the others after [rank N]. When a rank fails, the others
are stopped, and all are started again up to --max_restarts times. The exit code is that of the rank that failed first
(128 + n if signal n ended it).

Examples:
  flowshard launch --nproc_per_node 2 -- train configs/quickstart.toml
  flowshard launch --nproc_per_node gpu --max_restarts 3 -- train finetune.toml --set train.steps=1000
  two hosts, the same command on each but for --node_rank:
  flowshard launch --nnodes 2 --node_rank 0 --rdzv_endpoint gpu-1:29500 --nproc_per_node 8 -- train finetune.toml)";

struct Arguments {
  std::string processes = "1";
  double grace_seconds = 15;
  std::vector<std::string> command;
  launcher::LaunchOptions options;
};

void run(Arguments& arguments, const std::vector<std::string>& others) {
  if (!others.empty() && (!arguments.command.empty() || others[0].starts_with('-'))) {
    throw ConfigError("launch has no option {} (see flowshard launch --help)", others[0]);
  }
  if (arguments.command.empty()) {
    arguments.command = others;
  }
  if (arguments.command.empty()) {
    throw ConfigError("what the ranks shall run is missing: launch OPTIONS -- SUBCOMMAND ARGS...");
  }
  launcher::LaunchOptions& options = arguments.options;
  options.processes_per_node = launcher::processes_per_node(arguments.processes);
  options.grace = std::chrono::milliseconds(static_cast<int64_t>(arguments.grace_seconds * 1000));
  options.program = "/proc/self/exe";
  options.command = {"flowshard"};
  options.command.insert(options.command.end(), arguments.command.begin(), arguments.command.end());
  const launcher::LaunchResult result = launcher::launch(options);
  if (result.exit_code != 0) {
    print_line("flowshard launch: {}: {}", result.stopped ? "stopped" : "error", result.message);
    throw CLI::RuntimeError(result.exit_code);
  }
}

}  // namespace

std::vector<std::string> take_command_of_ranks(int& argc, char** argv) {
  char** const dashes = std::find(argv, argv + argc, std::string_view("--"));
  if (argc < 2 || argv[1] != std::string_view("launch") || dashes == argv + argc) {
    return {};
  }
  std::vector<std::string> command(dashes + 1, argv + argc);
  argc = static_cast<int>(dashes - argv);
  return command;
}

void add_launch(CLI::App& app, const std::vector<std::string>& command) {
  const auto arguments = std::make_shared<Arguments>();
  arguments->command = command;
  launcher::LaunchOptions& options = arguments->options;
  CLI::App* launch = app.add_subcommand("launch", "Run a subcommand as several ranks on this host");
  launch
      ->add_option("--nproc_per_node,--nproc-per-node", arguments->processes,
                   "Ranks on this host: a number, gpu, cpu or auto")
      ->capture_default_str();
  launch->add_option("--nnodes", options.nodes, "Hosts of the job")->capture_default_str();
  launch->add_option("--node_rank,--node-rank", options.node_rank, "Number of this host, from 0")
      ->capture_default_str();
  launch->add_option("--rdzv_endpoint,--rdzv-endpoint", options.endpoint,
                     "HOST:PORT where rank 0 listens (one host: a free port)");
  launch->add_option("--rdzv_id,--rdzv-id", options.job_id, "Name of the job, the same on all hosts");
  launch->add_option("--max_restarts,--max-restarts", options.max_restarts, "Starts after a failure")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  launch->add_option("--grace", arguments->grace_seconds, "Seconds from SIGTERM to SIGKILL")
      ->check(number_between(0, 86'400))
      ->capture_default_str();
  launch->prefix_command();  // without --, what follows the options is the command
  launch->footer(kFooter);
  launch->callback([arguments, launch] { run(*arguments, launch->remaining()); });
}

}  // namespace flowshard::apps
