#include "training/optimizer.h"

namespace flowshard::training {

Optimizer::Optimizer(const fsdp::ShardedState& state, const TrainConfig::Optimizer& config, double ema_decay)
    : state_(state), config_(config), ema_decay_(ema_decay) {
  for (const auto& group : state.groups()) {
    exp_avg.push_back(at::zeros_like(group->master_shard()));
    exp_avg_sq.push_back(at::zeros_like(group->master_shard()));
    if (ema_decay > 0) ema.push_back(group->master_shard().clone());
  }
}

void Optimizer::step(double lr, double grad_scale) {
  at::NoGradGuard no_grad;
  ++step_count_;
  std::vector<at::Tensor> masters, grads, steps;
  for (const auto& group : state_.groups()) {
    masters.push_back(group->master_shard());
    grads.push_back(group->grad_shard());
    steps.push_back(
        at::full({}, static_cast<double>(step_count_ - skipped_steps_), group->master_shard().options()));
  }
  if (grad_scale != 1) at::_foreach_mul_(grads, grad_scale);
  at::_fused_adamw_(masters, grads, exp_avg, exp_avg_sq, /*max_exp_avg_sqs=*/{}, steps, lr, config_.beta1,
                    config_.beta2, config_.weight_decay, config_.eps, /*amsgrad=*/false, /*maximize=*/false);
  if (!ema.empty()) at::_foreach_lerp_(ema, masters, 1 - ema_decay_);
}

}  // namespace flowshard::training
