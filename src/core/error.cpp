#include "core/error.h"

namespace flowshard {

void check(bool condition, std::string_view message, std::source_location where) {
  if (!condition) {
    throw InternalError(fmt::format("{}:{}: {}", where.file_name(), where.line(), message));
  }
}

ExitCode exit_code_of(const std::exception& error) {
  const auto* known = dynamic_cast<const Error*>(&error);
  return known ? known->exit_code() : ExitCode::kInternal;
}

std::string_view first_line(std::string_view message) { return message.substr(0, message.find('\n')); }

}  // namespace flowshard
