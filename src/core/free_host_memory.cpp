#include "core/free_host_memory.h"

#include <fstream>
#include <limits>
#include <string>

namespace flowshard {

int64_t free_host_memory() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key, unit;
  for (int64_t kib = 0; meminfo >> key >> kib; std::getline(meminfo, unit)) {
    if (key == "MemAvailable:") return kib * 1024;
  }
  return std::numeric_limits<int64_t>::max();
}

}  // namespace flowshard
