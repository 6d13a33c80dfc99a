#include "number_between.h"

#include <fmt/format.h>

#include <string>

namespace flowshard::apps {

CLI::Validator number_between(double low, double high) {
  const auto fault = [low, high](const std::string& text) {
    double value = 0;
    const bool fits = CLI::detail::lexical_cast(text, value) && value >= low && value <= high;
    return fits ? std::string() : fmt::format("{} is no number from {:.10g} to {:.10g}", text, low, high);
  };
  return CLI::Validator(fault, fmt::format("[{:.10g} - {:.10g}]", low, high));
}

}  // namespace flowshard::apps
