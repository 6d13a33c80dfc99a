// The subcommands of the program, each in a file of its own, named after it. add_NAME(app) describes the
// options and sets the callback that does the work. A callback reports failure by throwing (core/error.h):
// main() prints the error on one line and returns its exit code. To end with another exit code and no message
// it throws CLI::RuntimeError(code). Every subcommand ends its help with an example (CLI::App::footer).
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace flowshard::apps {

void add_bench(CLI::App& app);
void add_convert(CLI::App& app);
void add_dataset(CLI::App& app);
void add_eval(CLI::App& app);
void add_export(CLI::App& app);
void add_generate(CLI::App& app);
void add_inspect(CLI::App& app);
void add_launch(CLI::App& app, const std::vector<std::string>& command_of_ranks);
void add_plan(CLI::App& app);
void add_train(CLI::App& app);

/// Of `flowshard launch OPTIONS -- COMMAND...`: cuts off -- and COMMAND, which are not this process's to
/// parse, and returns COMMAND.
std::vector<std::string> take_command_of_ranks(int& argc, char** argv);

}  // namespace flowshard::apps
