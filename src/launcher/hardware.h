// What this host offers.
#pragma once

#include <string>

namespace flowshard::launcher {

int num_cores();  // that this process may use

/// GPUs that the ranks will see: CUDA_VISIBLE_DEVICES, or else the devices of the NVIDIA driver.
int num_gpus();

/// "4", "gpu", "cpu" or "auto" (the GPUs, without any the cores). Throws ConfigError.
int processes_per_node(const std::string& text);

}  // namespace flowshard::launcher
