// The flowshard program: finds the subcommand and turns errors into one line and an exit code.
#include <malloc.h>
#include <torch/version.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "core/error.h"
#include "core/standard_streams.h"
#include "subcommands.h"
#include "version.h"

namespace {

using flowshard::ExitCode;

// "flowshard train", "flowshard bench step"
std::string command_name(const CLI::App& app) {
  std::string name = app.get_name();
  for (const CLI::App* subcommand : app.get_subcommands()) {
    name += ' ' + command_name(*subcommand);
  }
  return name;
}

// "nope" of "flowshard bench nope": the word in the place of a subcommand; "" if there is none.
std::string unknown_subcommand(const CLI::App& app, int argc, char** argv) {
  const CLI::App* innermost = &app;
  int next = 1;
  for (; !innermost->get_subcommands().empty(); ++next) innermost = innermost->get_subcommands().front();
  const bool is_group = !innermost->get_subcommands([](const CLI::App*) { return true; }).empty();
  return is_group && next < argc && argv[next][0] != '-' ? argv[next] : "";
}

// " [rank 1 of 2 on gpu-3]" in a job of several processes.
std::string rank_tag() {
  constexpr const char* kNames[][2] = {{"RANK", "WORLD_SIZE"},
                                       {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                       {"PMI_RANK", "PMI_SIZE"},
                                       {"SLURM_PROCID", "SLURM_NTASKS"}};
  const char *rank = nullptr, *size = nullptr;
  for (const auto& [rank_name, size_name] : kNames) {
    if (rank && size) break;
    rank = std::getenv(rank_name);
    size = std::getenv(size_name);
  }
  if (!rank || !size || std::string_view(size) == "1") {
    return "";
  }
  char host[256] = "?";
  gethostname(host, sizeof(host) - 1);
  return fmt::format(" [rank {} of {} on {}]", rank, size, host);
}

void print_error(const CLI::App& app, std::string_view kind, std::string_view message) {
  flowshard::print_line("{}{}: {}: {}", command_name(app), rank_tag(), kind, flowshard::first_line(message));
}

// What a command prints is its result.
bool is_all_printed() { return std::fflush(stdout) == 0 && std::ferror(stdout) == 0; }

// Ends the process without static destructors: after a failure, threads of the communication libraries may
// still run.
int end_with(ExitCode code) {
  std::fflush(nullptr);
  std::_Exit(static_cast<int>(code));
}

// On a CPU a tensor of some megabytes otherwise goes back to the kernel after each operation, and the next
// one faults its pages in again: without this, encoding 32 pictures of 64x64 takes 53 ms instead of 33.
void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the most that glibc allows
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

}  // namespace

int main(int argc, char** argv) {
  flowshard::open_closed_streams();
  keep_freed_memory();
  std::signal(SIGXFSZ,
              SIG_IGN);  // a file over the limit of `ulimit -f` is an error of the write, not a death
  CLI::App app("Train FLUX.1-dev on many GPUs, and generate with it.", "flowshard");
  app.set_version_flag("--version", "flowshard " FLOWSHARD_VERSION " (LibTorch " TORCH_VERSION ")");
  app.require_subcommand(1);
  flowshard::apps::add_bench(app);
  flowshard::apps::add_convert(app);
  flowshard::apps::add_dataset(app);
  flowshard::apps::add_eval(app);
  flowshard::apps::add_export(app);
  flowshard::apps::add_generate(app);
  flowshard::apps::add_inspect(app);
  flowshard::apps::add_launch(app, flowshard::apps::take_command_of_ranks(argc, argv));
  flowshard::apps::add_plan(app);
  flowshard::apps::add_train(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::RuntimeError& exit) {
    return exit.get_exit_code();
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help and --version
      return app.exit(error);
    }
    const std::string unknown = unknown_subcommand(app, argc, argv);
    const std::string message =
        unknown.empty() ? error.what() : fmt::format("there is no subcommand '{}'", unknown);
    print_error(app, "error", fmt::format("{} (see {} --help)", message, command_name(app)));
    return static_cast<int>(ExitCode::kUsage);
  } catch (const flowshard::Error& error) {
    print_error(app, "error", error.what());
    return end_with(error.exit_code());
  } catch (const std::filesystem::filesystem_error& error) {
    // A path that the system does not even look at: too long a name, a circle of links, a closed folder.
    print_error(app, "error", fmt::format("{}: {}", error.path1().string(), error.code().message()));
    return end_with(ExitCode::kUsage);
  } catch (const std::exception& error) {
    if (is_all_printed()) {
      print_error(app, "internal error", error.what());
      return end_with(flowshard::exit_code_of(error));
    }
  }
  if (is_all_printed()) return 0;
  print_error(app, "error", "standard output cannot be written: is its disk full or its reader gone?");
  return end_with(ExitCode::kData);
}
