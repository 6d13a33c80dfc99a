// The option --set of the commands that read a training configuration.
#pragma once

#include <vector>

#include "core/config_value.h"

namespace CLI {
class App;
}

namespace flowshard::apps {

/// Adds --set section.key=value, which appends to `overrides`; they outlive the parsing.
void add_overrides(CLI::App& command, std::vector<ConfigEntry>& overrides);

}  // namespace flowshard::apps
