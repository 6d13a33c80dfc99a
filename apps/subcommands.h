// The subcommands of the program, each in a file of its own, named after it. add_NAME(app) describes the
// options and sets the callback that does the work. A callback reports failure by throwing (core/error.h):
// main() prints the error on one line and returns its exit code. To end with another exit code and no message
// it throws CLI::RuntimeError(code). Every subcommand ends its help with an example (CLI::App::footer).
#pragma once

namespace CLI {
class App;
}

namespace flowshard::apps {

void add_dataset(CLI::App& app);
void add_eval(CLI::App& app);
void add_train(CLI::App& app);

}  // namespace flowshard::apps
