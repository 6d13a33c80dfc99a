// How a run is laid out over ranks and devices, from its configuration.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "distributed/environment.h"
#include "distributed/process_group.h"
#include "fsdp/policy.h"
#include "training/memory_advice.h"
#include "training/train_config.h"

namespace flowshard::training {

/// The device of this rank, which becomes the current one. Throws ConfigError if it is not there.
at::Device device_of(const TrainConfig& config, const distributed::Environment& environment);

/// Connects the ranks of the job, as distributed.backend says. Throws CommError.
std::unique_ptr<distributed::ProcessGroup> connect_ranks(const TrainConfig& config,
                                                         const distributed::Environment& environment,
                                                         at::Device device);

/// The ranks of the job, as the estimates take them.
JobSize job_size(const distributed::Environment& environment);

/// What would help where memory has run out.
std::vector<MemoryAdvice> advise(const TrainConfig& config, const distributed::Environment& environment);

/// How many ranks hold one model together.
int shard_size(const TrainConfig& config, const distributed::Environment& environment);

/// Host bytes that this rank may take for what is kept off its device.
int64_t host_budget(const TrainConfig& config, const distributed::Environment& environment);

fsdp::ShardContext shard_context(const TrainConfig& config, distributed::DeviceMesh& mesh, at::Device device,
                                 fsdp::HostMemory& host_memory);

}  // namespace flowshard::training
