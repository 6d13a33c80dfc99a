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

int64_t largest_block(const std::vector<std::unique_ptr<ParamGroup>>& groups) {
  int64_t largest = 0;
  for (size_t i = 1; i < groups.size(); ++i) largest = std::max(largest, groups[i]->padded_numel());
  return largest;
}

at::TensorOptions options(at::ScalarType dtype, at::Device device) {
  return at::TensorOptions(dtype).device(device);
}

}  // namespace

ShardedState::ShardedState(const std::vector<nn::ParameterGroup*>& groups, const ShardContext& context)
    : context_(context),
      groups_(make_groups(groups, context)),
      root_pool_(groups_[0]->padded_numel(), options(context.precision.param_dtype, context.device)),
      root_grad_pool_(groups_[0]->padded_numel(), options(context.precision.reduce_dtype, context.device)),
      pool_(largest_block(groups_), options(context.precision.param_dtype, context.device)),
      grad_pool_(largest_block(groups_), options(context.precision.reduce_dtype, context.device)) {
  for (size_t i = 0; i < groups.size(); ++i) index_of_[groups[i]] = i;
}

void ShardedState::initialize(const std::function<void(const nn::ParameterGroup&)>& fill) {
  for (const auto& group : groups_) group->initialize(fill);
}

void ShardedState::begin_step() {
  for (const auto& group : groups_) group->zero_grad();
}

void ShardedState::begin_forward() {
  groups_[0]->unshard(root_pool_);
  if (groups_.size() > 1) groups_[1]->unshard(pool_);
  groups_[0]->wait_for_unshard(root_pool_);
  if (at::GradMode::is_enabled()) groups_[0]->pre_backward(root_grad_pool_);
}

nn::Tensors ShardedState::run(const nn::ParameterGroup& group, const nn::BlockFunction& block,
                              const nn::Tensors& inputs) {
  const size_t index = index_of_.at(&group);
  groups_[index]->wait_for_unshard(pool_);
  if (index + 1 < groups_.size()) groups_[index + 1]->unshard(pool_);

  nn::Tensors outputs;
  if (at::GradMode::is_enabled()) {
    const at::Tensor handle = at::empty({0}, inputs[0].options()).set_requires_grad(true);
    const auto id = static_cast<int64_t>(index);
    const nn::Tensors results = block(BlockInput::apply(this, id, handle, at::TensorList(inputs)));
    outputs = BlockOutput::apply(this, id, at::TensorList(results));
  } else {
    outputs = block(inputs);
  }
  // Backward begins with the last block: it stays.
  if (index + 1 < groups_.size() || !at::GradMode::is_enabled()) groups_[index]->reshard(pool_);
  return outputs;
}

void ShardedState::pre_backward(size_t index) {
  groups_[index]->wait_for_unshard(pool_);
  groups_[index]->pre_backward(grad_pool_);
  if (index > 1) groups_[index - 1]->unshard(pool_);
}

void ShardedState::post_backward(size_t index) {
  groups_[index]->reshard(pool_);
  groups_[index]->post_backward();
  // One reduction runs under the next block's backward; the one before it must make room.
  if (index + 1 < groups_.size()) groups_[index + 1]->wait_for_reduce(grad_pool_);
}

void ShardedState::end_backward() {
  groups_[0]->post_backward();
  for (const auto& group : groups_)
    group->wait_for_reduce(group == groups_[0] ? root_grad_pool_ : grad_pool_);
  groups_[0]->reshard(root_pool_);
}

void ShardedState::end_forward() { groups_[0]->reshard(root_pool_); }

}  // namespace flowshard::fsdp
