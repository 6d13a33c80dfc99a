#include "launcher/hardware.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "core/error.h"

namespace flowshard::launcher {

namespace {

constexpr int kMostProcesses = 1024;  // on one host

}  // namespace

int num_cores() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? std::max(1, CPU_COUNT(&cores)) : 1;
}

int num_gpus() {
  int count = 0;
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) {
    std::istringstream devices(visible);
    for (std::string device; std::getline(devices, device, ',') && !device.empty() && device != "-1";) {
      ++count;
    }
    return count;
  }
  std::error_code no_driver;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", no_driver)) {
    count += entry.is_directory();
  }
  return count;
}

int processes_per_node(const std::string& text) {
  if (text == "auto") {
    return num_gpus() > 0 ? num_gpus() : num_cores();
  }
  if (text == "cpu") {
    return num_cores();
  }
  if (text == "gpu") {
    if (num_gpus() == 0) {
      throw ConfigError(
          "--nproc_per_node gpu: this host shows no GPU (see nvidia-smi and CUDA_VISIBLE_DEVICES)");
    }
    return num_gpus();
  }
  int count = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, count);
  if (parsed.ec != std::errc() || parsed.ptr != end || count < 1 || count > kMostProcesses) {
    throw ConfigError("--nproc_per_node '{}' is neither a number from 1 to {} nor gpu, cpu or auto", text,
                      kMostProcesses);
  }
  return count;
}

}  // namespace flowshard::launcher
