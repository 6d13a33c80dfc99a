// launch_program RANKS MAX_RESTARTS PROGRAM ARGS...: what `flowshard launch` does, for any program.
#include <cstdio>
#include <cstdlib>

#include "core/error.h"
#include "launcher/launch.h"

int main(int argc, char** argv) {
  if (argc < 4) {
    fmt::print(stderr, "usage: launch_program RANKS MAX_RESTARTS PROGRAM ARGS...\n");
    return 2;
  }
  flowshard::launcher::LaunchOptions options;
  options.program = argv[3];
  options.command.assign(argv + 3, argv + argc);
  options.processes_per_node = std::atoi(argv[1]);
  options.max_restarts = std::atoi(argv[2]);
  const flowshard::launcher::LaunchResult result = flowshard::launcher::launch(options);
  if (result.exit_code != 0) {
    fmt::print(stderr, "{}\n", result.message);
  }
  return result.exit_code;
}
