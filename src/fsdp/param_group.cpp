#include "fsdp/param_group.h"

#include <algorithm>

#include "core/error.h"
#include "fsdp/staged_update.h"

namespace flowshard::fsdp {

ParamGroup::ParamGroup(nn::ParameterGroup& group, const ShardContext& context)
    : group_(group), context_(context) {
  for (const nn::Parameter* parameter : group_.parameters) {
    offsets_.push_back(numel_);
    numel_ += parameter->numel();
  }
  const int64_t count = context_.shard_count();
  padded_numel_ = (numel_ + count - 1) / count * count;
  const auto master_dtype = context_.precision.master_dtype;
  const auto options = at::TensorOptions(context_.device).dtype(master_dtype);
  master_shard_ = context_.host_memory ? context_.host_memory->zeros(shard_numel(), master_dtype)
                                       : at::zeros({shard_numel()}, options);
  // Freeing it would cost a page fault for each page of each step.
  if (context_.device.is_cpu()) grad_shard_ = at::zeros({shard_numel()}, options.dtype(grad_dtype()));
}

at::ScalarType ParamGroup::grad_dtype() const {
  const auto& precision = context_.precision;
  return precision.master_dtype == precision.reduce_dtype ? precision.reduce_dtype : at::kFloat;
}

// Backward and its reduction write every value.
void ParamGroup::need_grad_shard() {
  if (grad_shard_.defined()) return;
  grad_shard_ = at::empty({shard_numel()}, at::TensorOptions(context_.device).dtype(grad_dtype()));
}

void ParamGroup::initialize(const std::function<void(const nn::ParameterGroup&)>& fill) {
  const at::Tensor flat = at::zeros({padded_numel_}, at::TensorOptions(at::kFloat).device(context_.device));
  view_parameters(flat);
  fill(group_);
  master_shard_.copy_(flat.narrow(0, shard_begin(), shard_numel()));
  for (nn::Parameter* parameter : group_.parameters) parameter->value = at::Tensor();
  is_viewed_ = false;
}

// A rank that holds everything and computes in the precision of the master: it is the gathered buffer.
bool ParamGroup::aliases_master() const {
  return context_.shard_count() == 1 && context_.precision.param_dtype == context_.precision.master_dtype &&
         master_shard_.device() == context_.device;
}

// Likewise: backward writes straight into grad_shard().
bool ParamGroup::aliases_grad() const {
  return context_.shard_count() == 1 && context_.precision.reduce_dtype == grad_dtype();
}

void ParamGroup::view_parameters(const at::Tensor& flat) {
  for (size_t i = 0; i < group_.parameters.size(); ++i) {
    nn::Parameter& parameter = *group_.parameters[i];
    parameter.value = flat.narrow(0, offsets_[i], parameter.numel()).view(parameter.shape);
  }
  is_viewed_ = true;
}

// [Note: overlap] The side stream waits for what the computation was given before this call, so it does not
// touch a buffer that an earlier block still uses, nor a master that the optimizer still writes; the block
// that is queued after this call runs beside it.
void ParamGroup::unshard(FlatBufferPool& pool, SideStream& stream) {
  if (unsharded_.defined()) return;
  at::NoGradGuard no_grad;
  if (aliases_master()) {
    unsharded_ = master_shard_;
    return;
  }
  unsharded_ = pool.take(padded_numel_);
  const at::Tensor own = unsharded_.narrow(0, shard_begin(), shard_numel());
  rounded_ = stream.run([&] {
    round_master(own);
    if (context_.shard_count() > 1) gathering_ = context_.mesh.shard().all_gather(unsharded_, own);
  });
}

// Rounding needs the device: a copy between devices and types would do it on the host.
void ParamGroup::round_master(const at::Tensor& own) const {
  if (master_shard_.device() == context_.device) {
    own.copy_(master_shard_);
    return;
  }
  const at::Tensor slice =
      at::empty({std::min(kStagingSlice, own.numel())}, master_shard_.options().device(context_.device));
  for (int64_t begin = 0; begin < own.numel(); begin += kStagingSlice) {
    const int64_t count = std::min(kStagingSlice, own.numel() - begin);
    const at::Tensor part = slice.narrow(0, 0, count);
    part.copy_(master_shard_.narrow(0, begin, count), /*non_blocking=*/true);
    own.narrow(0, begin, count).copy_(part);
  }
}

void ParamGroup::wait_for_unshard(FlatBufferPool& pool, SideStream& stream) {
  unshard(pool, stream);
  SideStream::wait(rounded_);
  rounded_.reset();
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

void ParamGroup::zero_grad() {
  check(!reducing_, "gradients are not cleared while they are reduced");
  grad_shard_written_ = false;
  if (!context_.device.is_cpu()) grad_shard_ = at::Tensor();
}

void ParamGroup::pre_backward(FlatBufferPool& grad_pool) {
  if (unsharded_grad_.defined()) return;  // of an earlier pass: this one adds to it
  if (aliases_grad()) need_grad_shard();
  unsharded_grad_ = aliases_grad() ? grad_shard_ : grad_pool.take(padded_numel_);
  for (size_t i = 0; i < group_.parameters.size(); ++i) {
    nn::Parameter& parameter = *group_.parameters[i];
    if (!parameter.trainable) continue;
    parameter.grad = unsharded_grad_.narrow(0, offsets_[i], parameter.numel()).view(parameter.shape);
    parameter.zero_grad();
  }
}

void ParamGroup::post_backward(bool is_last_pass, SideStream& stream) {
  at::NoGradGuard no_grad;
  if (!is_last_pass && (context_.no_sync || aliases_grad())) return;
  release_gradients();
  reduce(stream);
}

void ParamGroup::release_gradients() {
  for (size_t i = 0; i < group_.parameters.size(); ++i) {
    nn::Parameter& parameter = *group_.parameters[i];
    // The buffer holds another group's old gradients: what backward did not reach is zero.
    if (!parameter.grad_written) unsharded_grad_.narrow(0, offsets_[i], parameter.numel()).zero_();
    parameter.grad = at::Tensor();
    parameter.zero_grad();
  }
  unsharded_grad_.narrow(0, numel_, padded_numel_ - numel_).zero_();
}

void ParamGroup::reduce(SideStream& stream) {
  distributed::ProcessGroup &shard = context_.mesh.shard(), &replicate = context_.mesh.replicate();
  const bool straight = !grad_shard_written_ && context_.precision.reduce_dtype == grad_dtype();
  if (!is_sharded()) {
    reduced_ = unsharded_grad_;
  } else {
    if (straight) need_grad_shard();
    reduced_ = straight ? grad_shard_ : at::empty({shard_numel()}, unsharded_grad_.options());
    reducing_ = shard.reduce_scatter_sum(reduced_, unsharded_grad_);
  }
  if (replicate.world_size() == 1) return;
  stream.run([&] {
    if (reducing_) reducing_->wait();
    reducing_ = replicate.all_reduce_sum(reduced_);
  });
}

void ParamGroup::wait_for_reduce(FlatBufferPool& grad_pool) {
  if (!reduced_.defined()) return;
  at::NoGradGuard no_grad;
  if (reducing_) reducing_->wait();
  reducing_.reset();
  if (!reduced_.is_same(grad_shard_)) {
    need_grad_shard();
    grad_shard_written_ ? grad_shard_.add_(reduced_) : grad_shard_.copy_(reduced_);
  }
  grad_shard_written_ = true;
  if (!aliases_grad()) grad_pool.give_back(unsharded_grad_);
  reduced_ = unsharded_grad_ = at::Tensor();
}

}  // namespace flowshard::fsdp
