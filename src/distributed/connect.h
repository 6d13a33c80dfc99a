// From a store that all ranks reach to a connected process group.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "distributed/process_group.h"

namespace flowshard::distributed {

struct GroupOptions {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;  // in the job, as is world_size
  int world_size = 1;
  at::Device device = at::kCPU;
  std::chrono::milliseconds timeout{0};
  std::string local_address;           // Gloo listens here
  std::string store_owner = "rank 0";  // for messages
  std::string name = "job";            // of the group; its keys in the store begin with it
  std::vector<int> members = {};       // the ranks of the job that form it, in order; empty: all of them

  int group_size() const { return members.empty() ? world_size : static_cast<int>(members.size()); }
  /// Of this process in the group.
  int group_rank() const;
  int rank_in_job(int group_rank) const {
    return members.empty() ? group_rank : members[static_cast<size_t>(group_rank)];
  }
  c10::intrusive_ptr<c10d::Store> group_store() const;
};

/// Gloo on a CPU, NCCL on a GPU. Throws CommError when the ranks are not connected after the timeout.
std::unique_ptr<ProcessGroup> connect(const GroupOptions& options);

/// The steps of connect(); they may block for longer. connect_nccl throws ConfigError in a build without
/// CUDA.
std::unique_ptr<ProcessGroup> connect_gloo(const GroupOptions& options);
std::unique_ptr<ProcessGroup> connect_nccl(const GroupOptions& options);

}  // namespace flowshard::distributed
