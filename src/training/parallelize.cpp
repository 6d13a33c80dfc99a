#include "training/parallelize.h"

#include <ATen/Context.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <limits>

#include "core/error.h"
#include "distributed/host_staged_group.h"
#include "kernels/gpu.h"
#include "training/model_sizes.h"
#include "training/precision.h"

namespace flowshard::training {

at::Device device_of(const TrainConfig& config, const distributed::Environment& environment) {
  if (config.run.device == Device::kCpu) return at::kCPU;
  const std::string_view setting = "run.device is cuda";
  kernels::require_gpu(setting);
  const int num_gpus = static_cast<int>(at::getNumGPUs());
  const bool shares_gpus = config.distributed.backend == Backend::kGloo && num_gpus > 0;
  const int gpu =
      shares_gpus ? environment.local_rank % num_gpus : distributed::gpu_of(environment, num_gpus);
  const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(gpu));
  // Gradients are made of the memory that activations leave: pieces of it must join.
  if (c10::CachingAllocator::getAllocatorSettings().empty())
    c10::CachingAllocator::setAllocatorSettings("expandable_segments:True");
  c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
  kernels::require_kernels(setting, device);
  return device;
}

std::unique_ptr<distributed::ProcessGroup> connect_ranks(const TrainConfig& config,
                                                         const distributed::Environment& environment,
                                                         at::Device device) {
  const bool through_host = config.distributed.backend == Backend::kGloo && !device.is_cpu();
  auto ranks = distributed::ProcessGroup::create(environment, through_host ? at::Device(at::kCPU) : device,
                                                 std::chrono::seconds(config.distributed.timeout_seconds));
  return through_host ? distributed::make_host_staged_group(std::move(ranks)) : std::move(ranks);
}

JobSize job_size(const distributed::Environment& environment) {
  return {.num_ranks = environment.world_size, .ranks_per_host = environment.local_world_size};
}

std::vector<MemoryAdvice> advise(const TrainConfig& config, const distributed::Environment& environment) {
  return advise_memory(config, model_sizes({config.model.path}), job_size(environment));
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
