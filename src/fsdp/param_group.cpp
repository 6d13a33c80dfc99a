#include "fsdp/param_group.h"

#include "core/error.h"

namespace flowshard::fsdp {

ParamGroup::ParamGroup(nn::ParameterGroup& group, const ShardContext& context)
    : group_(group), context_(context) {
  for (const nn::Parameter* parameter : group_.parameters) {
    offsets_.push_back(numel_);
    numel_ += parameter->numel();
  }
  const int64_t count = context_.shard_count();
  padded_numel_ = (numel_ + count - 1) / count * count;
  const auto options = at::TensorOptions(at::kFloat).device(context_.device);
  master_shard_ = at::zeros({shard_numel()}, options);
  grad_shard_ = at::zeros({shard_numel()}, options);
}

void ParamGroup::initialize(const std::function<void(const nn::ParameterGroup&)>& fill) {
  const at::Tensor flat = at::zeros({padded_numel_}, at::kFloat);
  view_parameters(flat);
  fill(group_);
  master_shard_.copy_(flat.narrow(0, shard_begin(), shard_numel()));
  for (nn::Parameter* parameter : group_.parameters) parameter->value = at::Tensor();
  is_viewed_ = false;
}

// One rank, or replicas, that compute in fp32: the master is the gathered buffer.
bool ParamGroup::aliases_master() const {
  return context_.shard_count() == 1 && context_.precision.param_dtype == at::kFloat;
}

void ParamGroup::view_parameters(const at::Tensor& flat) {
  for (size_t i = 0; i < group_.parameters.size(); ++i) {
    nn::Parameter& parameter = *group_.parameters[i];
    parameter.value = flat.narrow(0, offsets_[i], parameter.numel()).view(parameter.shape);
  }
  is_viewed_ = true;
}

void ParamGroup::unshard(FlatBufferPool& pool) {
  if (unsharded_.defined()) return;
  at::NoGradGuard no_grad;
  if (aliases_master()) {
    unsharded_ = master_shard_;
    return;
  }
  unsharded_ = pool.take(padded_numel_);
  const at::Tensor own = unsharded_.narrow(0, shard_begin(), shard_numel());
  own.copy_(master_shard_);
  if (context_.shard_count() > 1) gathering_ = context_.process_group.all_gather(unsharded_, own);
}

void ParamGroup::wait_for_unshard(FlatBufferPool& pool) {
  unshard(pool);
  if (gathering_) {
    gathering_->wait();
    gathering_.reset();
  }
  if (!is_viewed_) view_parameters(unsharded_);
}

void ParamGroup::reshard(FlatBufferPool& pool) {
  if (!unsharded_.defined()) return;
  check(!gathering_, "a group is not resharded while it is gathered");
  for (nn::Parameter* parameter : group_.parameters) parameter->value = at::Tensor();
  is_viewed_ = false;
  if (!aliases_master()) pool.give_back(unsharded_);
  unsharded_ = at::Tensor();
}

void ParamGroup::pre_backward(FlatBufferPool& grad_pool) {
  if (unsharded_grad_.defined()) return;
  unsharded_grad_ = grad_pool.take(padded_numel_);
  for (size_t i = 0; i < group_.parameters.size(); ++i) {
    nn::Parameter& parameter = *group_.parameters[i];
    if (!parameter.trainable) continue;
    parameter.grad = unsharded_grad_.narrow(0, offsets_[i], parameter.numel()).view(parameter.shape);
    parameter.zero_grad();
  }
}

void ParamGroup::post_backward() {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < group_.parameters.size(); ++i) {
    nn::Parameter& parameter = *group_.parameters[i];
    // The buffer holds another group's old gradients: what backward did not reach is zero.
    if (!parameter.grad_written) unsharded_grad_.narrow(0, offsets_[i], parameter.numel()).zero_();
    parameter.grad = at::Tensor();
    parameter.zero_grad();
  }
  unsharded_grad_.narrow(0, numel_, padded_numel_ - numel_).zero_();

  distributed::ProcessGroup& ranks = context_.process_group;
  if (context_.shard_count() > 1) {
    reduced_ = at::empty({shard_numel()}, unsharded_grad_.options());
    reducing_ = ranks.reduce_scatter_sum(reduced_, unsharded_grad_);
  } else {
    reduced_ = unsharded_grad_;
    if (ranks.world_size() > 1) reducing_ = ranks.all_reduce_sum(reduced_);
  }
}

void ParamGroup::wait_for_reduce(FlatBufferPool& grad_pool) {
  if (!reduced_.defined()) return;
  at::NoGradGuard no_grad;
  if (reducing_) reducing_->wait();
  reducing_.reset();
  if (grad_shard_written_) {
    grad_shard_.add_(reduced_);
  } else {
    grad_shard_.copy_(reduced_);
    grad_shard_written_ = true;
  }
  grad_pool.give_back(unsharded_grad_);
  reduced_ = unsharded_grad_ = at::Tensor();
}

}  // namespace flowshard::fsdp
