#include "distributed/variables.h"

#include <charconv>

#include "core/error.h"

namespace flowshard::distributed {

std::string Variables::text(const std::string& name) const {
  const std::optional<std::string> value = read_(name);
  if (!value) {
    throw ConfigError("the environment variable {} is not set", name);
  }
  if (value->empty()) {
    throw ConfigError("the environment variable {} is empty", name);
  }
  return *value;
}

int Variables::number(const std::string& name, int lowest, int highest) const {
  const std::string value = text(name);
  int result = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
  if (error != std::errc() || end != value.data() + value.size()) {
    throw ConfigError("the environment variable {}='{}' is not a whole number", name, value);
  }
  if (result < lowest || result > highest) {
    throw ConfigError("the environment variable {}={} is not between {} and {}", name, value, lowest,
                      highest);
  }
  return result;
}

bool Variables::flag(const std::string& name) const {
  const std::string value = read_(name).value_or("0");
  if (value == "True" || value == "true" || value == "1") {
    return true;
  }
  if (value == "False" || value == "false" || value == "0" || value.empty()) {
    return false;
  }
  throw ConfigError("the environment variable {}='{}' is neither True nor False", name, value);
}

}  // namespace flowshard::distributed
