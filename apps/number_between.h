// Checks of numbers on the command line.
#pragma once

#include <CLI/CLI.hpp>

namespace flowshard::apps {

/// A number from `low` to `high`; CLI::Range lets NaN through.
CLI::Validator number_between(double low, double high);

}  // namespace flowshard::apps
