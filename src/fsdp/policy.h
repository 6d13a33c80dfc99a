// How a model is sharded and in which precision it computes. Names are PyTorch's.
#pragma once

#include <ATen/ATen.h>

#include "distributed/device_mesh.h"
#include "fsdp/host_memory.h"

namespace flowshard::fsdp {

struct MixedPrecisionPolicy {
  at::ScalarType param_dtype = at::kFloat;   // of gathered parameters and activations
  at::ScalarType reduce_dtype = at::kFloat;  // of gradients, in the buffer and in the sum over ranks
  at::ScalarType master_dtype = at::kFloat;  // of the shards that the optimizer changes
};

/// What the groups of one model share. PyTorch's strategies are:
///   full_shard     a mesh of one row
///   shard_grad_op  the same, not resharded after forward
///   hybrid_shard   a mesh of several rows
///   no_shard       a mesh of one column
struct ShardContext {
  distributed::DeviceMesh& mesh;
  at::Device device;
  MixedPrecisionPolicy precision = {};
  /// False: blocks stay gathered from their forward to the end of their backward.
  bool reshard_after_forward = true;
  /// True: with several passes a step every rank keeps a whole gradient, which the last pass alone reduces.
  bool no_sync = false;
  /// Where master shards lie; null: on the device. A master on the host is copied to be gathered.
  HostMemory* host_memory = nullptr;

  int64_t shard_count() const { return mesh.shard().world_size(); }
  int64_t shard_index() const { return mesh.shard().rank(); }
};

}  // namespace flowshard::fsdp
