// The norm of a sharded gradient, and what is wrong with one that is not finite. Every rank makes the same
// calls and gets the same answer.
#pragma once

#include <string>

#include "distributed/device_mesh.h"
#include "fsdp/fully_shard.h"

namespace flowshard::training {

/// The Euclidean norm of the whole gradient. Every shard counts once, however many ranks hold it.
double global_grad_norm(const fsdp::ShardedState& state, const distributed::DeviceMesh& mesh);

/// The first parameter, in the order of the model, whose gradient has an element that is not finite; empty if
/// there is none.
std::string first_non_finite(const fsdp::ShardedState& state, const distributed::DeviceMesh& mesh);

}  // namespace flowshard::training
