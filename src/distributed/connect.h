// From a store that all ranks reach to a connected process group.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "distributed/process_group.h"

namespace flowshard::distributed {

struct GroupOptions {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int world_size = 1;
  at::Device device = at::kCPU;
  std::chrono::milliseconds timeout{0};
  std::string local_address;           // Gloo listens here
  std::string store_owner = "rank 0";  // for messages
};

/// Gloo on a CPU, NCCL on a GPU. Throws CommError when the ranks are not connected after the timeout.
std::unique_ptr<ProcessGroup> connect(const GroupOptions& options);

/// The steps of connect(); they may block for longer. connect_nccl throws ConfigError in a build without
/// CUDA.
std::unique_ptr<ProcessGroup> connect_gloo(const GroupOptions& options);
std::unique_ptr<ProcessGroup> connect_nccl(const GroupOptions& options);

}  // namespace flowshard::distributed
