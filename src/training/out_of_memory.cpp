#include "training/out_of_memory.h"

#include <c10/util/Exception.h>

#include <new>
#include <optional>
#include <regex>

#include "core/error.h"
#include "core/free_host_memory.h"

namespace flowshard::training {
namespace {

// What CUDACachingAllocator and the allocator of the host write.
std::string gpu_numbers(const std::string& message) {
  std::smatch part;
  const std::regex sizes(
      "Tried to allocate ([0-9.]+ \\w+)\\.[^.]*? capacity of ([0-9.]+ \\w+) of which "
      "([0-9.]+ \\w+) is free");
  if (!std::regex_search(message, part, sizes)) return std::string(first_line(message));
  return fmt::format("the GPU has no room for {} more: {} of {} are free", part[1].str(), part[3].str(),
                     part[2].str());
}

std::string host_numbers(const std::string& message) {
  std::smatch part;
  const bool is_known = std::regex_search(message, part, std::regex("tried to allocate ([0-9]+) bytes"));
  const int64_t asked = is_known ? std::stoll(part[1]) : 0, free = free_host_memory();
  return fmt::format("the host has no room for {}: {} of the machine are free{}",
                     is_known ? gibibytes(asked) + " more" : "more", gibibytes(free),
                     is_known && free > asked ? ", so the process or its container has a limit" : "");
}

/// What failed, or nothing if it was no allocation.
std::optional<std::string> failed_allocation() {
  try {
    throw;
  } catch (const c10::OutOfMemoryError& error) {
    return gpu_numbers(error.what_without_backtrace());
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    if (message.find("DefaultCPUAllocator") != std::string::npos) return host_numbers(message);
  } catch (const std::bad_alloc&) {
    return host_numbers("");
  } catch (...) {
  }
  return std::nullopt;
}

}  // namespace

void rethrow_out_of_memory(const std::string& where,
                           const std::function<std::vector<MemoryAdvice>()>& settings) {
  const std::optional<std::string> what = failed_allocation();
  if (!what) return;
  const std::string advice = to_text(settings());
  throw ConfigError("{}: out of memory: {}; {}", where, *what,
                    advice.empty() ? "take more GPUs or smaller pictures"
                                   : advice + " on each rank (flowshard plan shows all)");
}

}  // namespace flowshard::training
