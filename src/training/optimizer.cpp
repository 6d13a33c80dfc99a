#include "training/optimizer.h"

#include <algorithm>

#include "core/error.h"
#include "kernels/adamw.h"
#include "kernels/blockwise_quantization.h"

namespace flowshard::training {
namespace {

using kernels::CodeKind;

/// Elements [begin, begin + count) of what belongs to a shard, or of its scales.
at::Tensor slice_of(const at::Tensor& tensor, int64_t begin, int64_t count, bool is_scale = false) {
  if (!tensor.defined()) return {};
  if (!is_scale) return tensor.narrow(0, begin, count);
  return tensor.narrow(0, kernels::num_code_blocks(begin), kernels::num_code_blocks(count));
}

}  // namespace

Optimizer::Optimizer(const fsdp::ShardedState& state, const TrainConfig& config, at::Device device,
                     fsdp::HostMemory* host_memory)
    : state_(state), config_(config), device_(device), staged_update_(device) {
  int64_t first_element = 0;
  for (const auto& group : state.groups()) {
    groups_.push_back(make_state(*group, host_memory));
    groups_.back().first_element = first_element + group->shard_begin();
    first_element += group->numel();
  }
}

Optimizer::GroupState Optimizer::make_state(const fsdp::ParamGroup& group,
                                            fsdp::HostMemory* host_memory) const {
  const auto zeros = [&](int64_t numel, at::ScalarType dtype) {
    return host_memory ? host_memory->zeros(numel, dtype)
                       : at::zeros({numel}, at::TensorOptions(dtype).device(device_));
  };
  const int64_t numel = group.shard_numel();
  const bool codes = config_.optimizer.state_dtype == StateDtype::kInt8;
  GroupState result;
  result.exp_avg = zeros(numel, codes ? at::kByte : at::kFloat);
  result.exp_avg_sq = zeros(numel, codes ? at::kByte : at::kFloat);
  if (codes) {
    result.exp_avg.fill_(kernels::zero_code(CodeKind::kSigned));
    result.exp_avg_sq.fill_(kernels::zero_code(CodeKind::kUnsigned));
    result.exp_avg_scale = zeros(kernels::num_code_blocks(numel), at::kFloat);
    result.exp_avg_sq_scale = zeros(kernels::num_code_blocks(numel), at::kFloat);
  }
  if (keeps_average()) {
    result.ema = zeros(numel, at::kFloat);
    result.ema.copy_(group.master_shard());
  }
  return result;
}

void Optimizer::step(double lr, double grad_scale) {
  ++step_count_;
  std::vector<fsdp::StagedUpdate::Slice> slices;
  std::vector<at::Tensor> grads;
  std::vector<int64_t> first_elements;
  for (size_t i = 0; i < groups_.size(); ++i) {
    const fsdp::ParamGroup& group = *state_.groups()[i];
    const GroupState& own = groups_[i];
    for (int64_t begin = 0; begin < group.shard_numel(); begin += fsdp::kStagingSlice) {
      const int64_t count = std::min(fsdp::kStagingSlice, group.shard_numel() - begin);
      slices.push_back({slice_of(group.master_shard(), begin, count), slice_of(own.exp_avg, begin, count),
                        slice_of(own.exp_avg_sq, begin, count),
                        slice_of(own.exp_avg_scale, begin, count, true),
                        slice_of(own.exp_avg_sq_scale, begin, count, true), slice_of(own.ema, begin, count)});
      grads.push_back(slice_of(group.grad_shard(), begin, count));
      first_elements.push_back(own.first_element + begin);
    }
  }
  const auto& adamw = config_.optimizer;
  staged_update_.run(slices, [&](size_t i, const fsdp::StagedUpdate::Slice& tensors) {
    kernels::adamw_step({.param = tensors[0],
                         .grad = grads[i],
                         .exp_avg = tensors[1],
                         .exp_avg_sq = tensors[2],
                         .exp_avg_scale = tensors[3],
                         .exp_avg_sq_scale = tensors[4]},
                        {.lr = lr,
                         .beta1 = adamw.beta1,
                         .beta2 = adamw.beta2,
                         .eps = adamw.eps,
                         .weight_decay = adamw.weight_decay,
                         .step = step_count_ - skipped_steps_,
                         .grad_scale = grad_scale,
                         .seed = static_cast<uint64_t>(config_.run.seed),
                         .first_element = first_elements[i]});
    if (tensors[5].defined()) tensors[5].lerp_(tensors[0].to(at::kFloat), 1 - config_.ema.decay);
  });
}

Optimizer::NamedStates Optimizer::states(size_t index) const {
  const GroupState& own = groups_[index];
  const auto moment = [&](const at::Tensor& values, const at::Tensor& scale, CodeKind kind) {
    if (!scale.defined()) return values;
    at::Tensor decoded = at::empty(values.sizes(), at::TensorOptions(at::kFloat).device(device_));
    kernels::dequantize_blockwise(values.to(device_), scale.to(device_), decoded, kind);
    return decoded;
  };
  NamedStates states = {{"exp_avg", moment(own.exp_avg, own.exp_avg_scale, CodeKind::kSigned)},
                        {"exp_avg_sq", moment(own.exp_avg_sq, own.exp_avg_sq_scale, CodeKind::kUnsigned)}};
  if (own.ema.defined()) states.emplace_back("ema", own.ema);
  return states;
}

void Optimizer::restore(size_t index, const std::string& name, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  const GroupState& own = groups_[index];
  const auto moment = [&](const at::Tensor& stored, const at::Tensor& scale, CodeKind kind) {
    if (!scale.defined()) {
      stored.copy_(values);
      return;
    }
    const at::Tensor codes = at::empty(stored.sizes(), at::TensorOptions(at::kByte).device(device_));
    const at::Tensor scales = at::empty(scale.sizes(), at::TensorOptions(at::kFloat).device(device_));
    kernels::quantize_blockwise(values.to(device_, at::kFloat), codes, scales, kind);
    stored.copy_(codes);
    scale.copy_(scales);
  };
  if (name == "exp_avg") return moment(own.exp_avg, own.exp_avg_scale, CodeKind::kSigned);
  if (name == "exp_avg_sq") return moment(own.exp_avg_sq, own.exp_avg_sq_scale, CodeKind::kUnsigned);
  check(name == "ema" && own.ema.defined(), "an optimizer has the state that is restored");
  own.ema.copy_(values);
}

}  // namespace flowshard::training
