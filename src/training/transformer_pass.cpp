#include "training/transformer_pass.h"

#include "flow_matching/latents.h"
#include "flow_matching/schedule.h"
#include "training/activation_checkpointer.h"

namespace flowshard::training {

at::Tensor TransformerPass::backward(const EncodedBatch& batch,
                                     const std::vector<flow_matching::SampleKey>& keys, const StepPass& pass,
                                     fsdp::ShardedState& state, StepPhases& phases) {
  phases.begin("forward pass");
  const double mu =
      config_.flow.shift == Shift::kResolution ? flow_matching::shift_mu({}, batch.x0.size(1)) : 0.0;
  const auto noisy = flow_matching::add_noise(batch.x0, static_cast<uint64_t>(config_.run.seed), keys,
                                              {config_.flow.timestep_mean, config_.flow.timestep_std, mu});

  state.begin_forward(pass.is_last_of_step);
  ActivationCheckpointer runner(config_.memory.activation_checkpointing, transformer_.groups(), state);
  const at::Tensor v = velocity(batch, noisy, runner);
  const at::Tensor loss =
      flow_matching::flow_matching_loss(v, noisy.target, pass.global_samples * batch.x0[0].numel());
  phases.begin("backward pass");
  loss.backward(at::full_like(loss, pass.loss_scale));
  state.end_backward();
  return loss.detach();
}

at::Tensor TransformerPass::forward(const EncodedBatch& batch, const flow_matching::NoisyBatch& noisy,
                                    fsdp::ShardedState& state) {
  at::NoGradGuard no_grad;
  state.begin_forward();
  const at::Tensor v = velocity(batch, noisy, state);
  state.end_forward();
  return (v.to(at::kFloat) - noisy.target).square().flatten(1).mean(1);
}

at::Tensor TransformerPass::velocity(const EncodedBatch& batch, const flow_matching::NoisyBatch& noisy,
                                     nn::BlockRunner& runner) {
  if (!angles_.cos.defined()) {  // the same for every batch
    angles_ = transformer_.rotary_angles(
        flow_matching::image_ids(config_.data.height / downsampling_, config_.data.width / downsampling_),
        batch.txt.size(1));
  }
  return transformer_.forward(
      {.img = noisy.x_t,
       .txt = batch.txt,
       .angles = angles_,
       .timesteps = noisy.t,
       .y = batch.y,
       .guidance = transformer_.config().guidance_embed ? at::full_like(noisy.t, config_.flow.guidance)
                                                        : at::Tensor()},
      runner);
}

}  // namespace flowshard::training
