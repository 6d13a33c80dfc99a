#include "fsdp/fully_shard.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "core/error.h"

namespace flowshard::fsdp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// [Note: nodes around a block] C++ modules have no hooks, so run() passes a block's outputs and inputs
// through two identity nodes. Backward reaches the output node before any node of the block (gather the
// parameters) and the input node after all of them (reduce the gradients): every node of the block lies
// between the two, since a block reads no other differentiable tensor than its inputs. The input node also
// takes a handle that requires grad, so that it exists even where the inputs need no gradient.
struct BlockOutput : torch::autograd::Function<BlockOutput> {
  static variable_list forward(AutogradContext* context, ShardedState* state, int64_t index,
                               at::TensorList outputs) {
    context->saved_data["state"] = reinterpret_cast<int64_t>(state);
    context->saved_data["index"] = index;
    return outputs.vec();
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    auto* state = reinterpret_cast<ShardedState*>(context->saved_data["state"].toInt());
    state->pre_backward(static_cast<size_t>(context->saved_data["index"].toInt()));
    variable_list result = {Variable(), Variable()};
    result.insert(result.end(), grads.begin(), grads.end());
    return result;
  }
};

struct BlockInput : torch::autograd::Function<BlockInput> {
  static variable_list forward(AutogradContext* context, ShardedState* state, int64_t index,
                               const Variable& handle, at::TensorList inputs) {
    (void)handle;
    context->saved_data["state"] = reinterpret_cast<int64_t>(state);
    context->saved_data["index"] = index;
    return inputs.vec();
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    auto* state = reinterpret_cast<ShardedState*>(context->saved_data["state"].toInt());
    state->post_backward(static_cast<size_t>(context->saved_data["index"].toInt()));
    variable_list result = {Variable(), Variable(), Variable()};
    result.insert(result.end(), grads.begin(), grads.end());
    return result;
  }
};

std::vector<std::unique_ptr<ParamGroup>> make_groups(const std::vector<nn::ParameterGroup*>& groups,
                                                     const ShardContext& context) {
  std::vector<std::unique_ptr<ParamGroup>> result;
  for (nn::ParameterGroup* group : groups) result.push_back(std::make_unique<ParamGroup>(*group, context));
  return result;
}

using Pools = std::vector<std::unique_ptr<FlatBufferPool>>;

/// Pools for all groups; returns the pool of each. The blocks share one, unless each keeps its buffer.
std::vector<size_t> make_pools(Pools& pools, const std::vector<std::unique_ptr<ParamGroup>>& groups,
                               bool blocks_share, at::TensorOptions options) {
  std::vector<size_t> index = {0};
  int64_t largest_block = 0;
  pools.push_back(std::make_unique<FlatBufferPool>(groups[0]->padded_numel(), options));
  for (size_t i = 1; i < groups.size(); ++i) {
    largest_block = std::max(largest_block, groups[i]->padded_numel());
    index.push_back(blocks_share ? 1 : i);
    if (!blocks_share) pools.push_back(std::make_unique<FlatBufferPool>(groups[i]->padded_numel(), options));
  }
  if (blocks_share) pools.push_back(std::make_unique<FlatBufferPool>(largest_block, options));
  return index;
}

}  // namespace

ShardedState::ShardedState(const std::vector<nn::ParameterGroup*>& groups, const ShardContext& context)
    : context_(context),
      groups_(make_groups(groups, context)),
      gathering_stream_(context.device),
      reducing_stream_(context.device) {
  for (size_t i = 0; i < groups.size(); ++i) index_of_[groups[i]] = i;
  const auto options = at::TensorOptions(context.device);
  pool_index_ = make_pools(pools_, groups_, context.reshard_after_forward,
                           options.dtype(context.precision.param_dtype));
  grad_pool_index_ =
      make_pools(grad_pools_, groups_, !context.no_sync, options.dtype(context.precision.reduce_dtype));
}

void ShardedState::initialize(const std::function<void(const nn::ParameterGroup&)>& fill) {
  for (const auto& group : groups_) group->initialize(fill);
}

void ShardedState::begin_step() {
  for (const auto& group : groups_) group->zero_grad();
}

void ShardedState::begin_forward(bool is_last_pass) {
  is_last_pass_ = is_last_pass;
  groups_[0]->unshard(pool_of(0), gathering_stream_);
  if (groups_.size() > 1) groups_[1]->unshard(pool_of(1), gathering_stream_);
  groups_[0]->wait_for_unshard(pool_of(0), gathering_stream_);
  if (at::GradMode::is_enabled()) groups_[0]->pre_backward(grad_pool_of(0));
}

nn::Tensors ShardedState::run(const nn::ParameterGroup& group, const nn::BlockFunction& block,
                              const nn::Tensors& inputs) {
  const size_t index = index_of_.at(&group);
  const bool is_last_block = index + 1 == groups_.size();
  groups_[index]->wait_for_unshard(pool_of(index), gathering_stream_);
  if (!is_last_block) groups_[index + 1]->unshard(pool_of(index + 1), gathering_stream_);
  if (!at::GradMode::is_enabled()) {
    nn::Tensors outputs = block(inputs);
    groups_[index]->reshard(pool_of(index));
    return outputs;
  }
  const at::Tensor handle = at::empty({0}, inputs[0].options()).set_requires_grad(true);
  const auto id = static_cast<int64_t>(index);
  const nn::Tensors results = block(BlockInput::apply(this, id, handle, at::TensorList(inputs)));
  nn::Tensors outputs = BlockOutput::apply(this, id, at::TensorList(results));
  // Backward begins with the last block: it stays.
  if (context_.reshard_after_forward && !is_last_block) groups_[index]->reshard(pool_of(index));
  return outputs;
}

void ShardedState::pre_backward(size_t index) {
  groups_[index]->wait_for_unshard(pool_of(index), gathering_stream_);
  groups_[index]->pre_backward(grad_pool_of(index));
  if (index > 1) groups_[index - 1]->unshard(pool_of(index - 1), gathering_stream_);
}

void ShardedState::post_backward(size_t index) {
  groups_[index]->reshard(pool_of(index));
  groups_[index]->post_backward(is_last_pass_, reducing_stream_);
  // One reduction runs under the next block's backward; the one before it must make room.
  if (index + 1 < groups_.size()) groups_[index + 1]->wait_for_reduce(grad_pool_of(index + 1));
}

void ShardedState::end_backward() {
  groups_[0]->post_backward(is_last_pass_, reducing_stream_);
  for (size_t i = 0; i < groups_.size(); ++i) groups_[i]->wait_for_reduce(grad_pool_of(i));
  groups_[0]->reshard(pool_of(0));
}

void ShardedState::end_forward() { groups_[0]->reshard(pool_of(0)); }

}  // namespace flowshard::fsdp
