// Stands for nccl_group.cpp in a build without CUDA.
#include "core/error.h"
#include "distributed/connect.h"

namespace flowshard::distributed {

std::unique_ptr<ProcessGroup> connect_nccl(const GroupOptions& options) {
  throw ConfigError("{} ranks cannot run on {}: this build has no CUDA (build with FLOWSHARD_CUDA=ON)",
                    options.world_size, options.device.str());
}

}  // namespace flowshard::distributed
