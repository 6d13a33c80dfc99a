// Environment variables as checked numbers. Every complaint is a ConfigError that names the variable.
#pragma once

#include <string>

#include "distributed/environment.h"

namespace flowshard::distributed {

class Variables {
 public:
  explicit Variables(const VariableReader& read) : read_(read) {}

  bool has(const std::string& name) const { return read_(name).has_value(); }
  std::string text(const std::string& name) const;  // must be set, not empty
  int number(const std::string& name, int lowest, int highest) const;
  bool flag(const std::string& name) const;  // unset: false

 private:
  const VariableReader& read_;
};

}  // namespace flowshard::distributed
