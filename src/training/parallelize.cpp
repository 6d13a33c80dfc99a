#include "training/parallelize.h"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <limits>

#include "core/error.h"
#include "training/precision.h"

namespace flowshard::training {

at::Device device_of(const TrainConfig& config, const distributed::Environment& environment) {
  if (config.run.device == Device::kCpu) return at::kCPU;
  if (!at::hasCUDA()) throw ConfigError("run.device is \"cuda\", but no CUDA device is visible: use \"cpu\"");
  const int gpu = distributed::gpu_of(environment, static_cast<int>(at::getNumGPUs()));
  const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(gpu));
  c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
  return device;
}

int shard_size(const TrainConfig& config, const distributed::Environment& environment) {
  switch (config.parallel.strategy) {
    case Strategy::kNoShard:
      return 1;
    case Strategy::kHybridShard:
      return config.parallel.shard_size > 0 ? static_cast<int>(config.parallel.shard_size)
                                            : environment.local_world_size;
    default:
      return environment.world_size;
  }
}

int64_t host_budget(const TrainConfig& config, const distributed::Environment& environment) {
  if (config.memory.host_gib == 0) return std::numeric_limits<int64_t>::max();
  return static_cast<int64_t>(config.memory.host_gib * (1 << 30) / environment.local_world_size);
}

fsdp::ShardContext shard_context(const TrainConfig& config, distributed::DeviceMesh& mesh, at::Device device,
                                 fsdp::HostMemory& host_memory) {
  return {.mesh = mesh,
          .device = device,
          .precision = precision_of(config).shards,
          .reshard_after_forward = config.parallel.strategy != Strategy::kShardGradOp,
          .no_sync = config.train.no_sync,
          .host_memory = config.memory.offload_parameters ? &host_memory : nullptr};
}

}  // namespace flowshard::training
