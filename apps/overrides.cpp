#include "overrides.h"

#include <CLI/CLI.hpp>
#include <string>

namespace flowshard::apps {

void add_overrides(CLI::App& command, std::vector<ConfigEntry>& overrides) {
  command
      .add_option_function<std::vector<std::string>>(
          "--set",
          [&overrides](const std::vector<std::string>& assignments) {
            for (const std::string& assignment : assignments)
              overrides.push_back(parse_assignment(assignment, "--set"));
          },
          "section.key=value in place of what the file says; may be repeated")
      ->allow_extra_args(false);
}

}  // namespace flowshard::apps
