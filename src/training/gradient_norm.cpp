#include "training/gradient_norm.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace flowshard::training {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

/// The part of the parameter that lies in this rank's shard.
at::Tensor own_part(const fsdp::ParamGroup& group, size_t parameter) {
  const int64_t begin = group.offsets()[parameter] - group.shard_begin();
  const int64_t first = std::clamp<int64_t>(begin, 0, group.shard_numel());
  const int64_t last =
      std::clamp<int64_t>(begin + group.parameters()[parameter]->numel(), 0, group.shard_numel());
  return group.grad_shard().narrow(0, first, last - first);
}

int64_t first_on_this_rank(const fsdp::ShardedState& state) {
  int64_t index = 0;
  for (const auto& group : state.groups()) {
    for (size_t i = 0; i < group->parameters().size(); ++i, ++index) {
      if (!at::isfinite(own_part(*group, i)).all().item<bool>()) return index;
    }
  }
  return kNone;
}

}  // namespace

double global_grad_norm(const fsdp::ShardedState& state, const distributed::DeviceMesh& mesh) {
  at::Tensor sum = at::zeros({1}, state.groups()[0]->grad_shard().options().dtype(at::kDouble));
  for (const auto& group : state.groups()) {
    sum.add_(at::linalg_vector_norm(group->grad_shard(), 2, {}, false, at::kFloat).to(at::kDouble).square());
  }
  mesh.shard().all_reduce_sum(sum)->wait();
  return std::sqrt(sum.item<double>());
}

std::string first_non_finite(const fsdp::ShardedState& state, const distributed::DeviceMesh& mesh) {
  const at::Tensor own =
      at::full({1}, first_on_this_rank(state), at::kLong).to(state.groups()[0]->grad_shard().device());
  const at::Tensor all = at::empty({mesh.world().world_size()}, own.options());
  mesh.world().all_gather(all, own)->wait();
  int64_t index = all.min().item<int64_t>();
  if (index == kNone) return "";
  for (const auto& group : state.groups()) {
    const auto count = static_cast<int64_t>(group->parameters().size());
    if (index < count) return group->parameters()[static_cast<size_t>(index)]->name;
    index -= count;
  }
  return "";
}

}  // namespace flowshard::training
