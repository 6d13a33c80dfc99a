// The standard streams as a program finds them: closed, a full disk, a pipe that nobody reads.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

namespace flowshard {

/// Opens /dev/null in place of each that is closed: the next file opened would take its number, and what is
/// printed would stand in that file. Before any thread, once.
void open_closed_streams();

/// To stderr. A line that cannot be written is lost: no work ends for it.
void print_line(const std::string& text);

template <typename... Args>
void print_line(fmt::format_string<Args...> format, Args&&... args) requires(sizeof...(Args) > 0) {
  print_line(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace flowshard
