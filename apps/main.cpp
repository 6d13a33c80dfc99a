// The flowshard program: finds the subcommand and turns errors into one line and an exit code.
#include <torch/version.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "core/error.h"
#include "version.h"

int main(int argc, char** argv) {
  CLI::App app("Train and serve FLUX.1-dev on many GPUs.", "flowshard");
  app.set_version_flag("--version", "flowshard " FLOWSHARD_VERSION " (LibTorch " TORCH_VERSION ")");
  app.require_subcommand(1);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : static_cast<int>(flowshard::ExitCode::kUsage);
  } catch (const std::exception& error) {
    fmt::print(stderr, "flowshard: error: {}\n", error.what());
    return static_cast<int>(flowshard::exit_code_of(error));
  }
  return 0;
}
