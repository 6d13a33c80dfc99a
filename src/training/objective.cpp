#include "training/objective.h"

#include "core/error.h"
#include "flow_matching/latents.h"
#include "flow_matching/loss.h"
#include "flow_matching/schedule.h"
#include "training/activation_checkpointer.h"
#include "training/precision.h"

namespace flowshard::training {

Objective::Objective(const ModelFolder& folder, const TrainConfig& config, at::Device device)
    : config_(config),
      transformer_(models::FlowTransformerConfig::from_diffusers(folder.part("transformer") / "config.json")),
      encoder_(folder, config, at::TensorOptions(precision_of(config).buffer_dtype).device(device)) {
  check_shapes();
}

void Objective::check_shapes() const {
  const auto& config = transformer_.config();
  const int64_t multiple = 2 * encoder_.autoencoder_config().downsampling();
  if (config_.data.height % multiple != 0 || config_.data.width % multiple != 0) {
    throw ConfigError("data.height and data.width are {}x{}: they must be multiples of {} for {}",
                      config_.data.height, config_.data.width, multiple, config_.model.path);
  }
  if (config.in_channels != 4 * encoder_.autoencoder_config().latent_channels ||
      config.context_in_dim != encoder_.conditioner().hidden_size() ||
      config.vec_in_dim != encoder_.conditioner().pooled_size()) {
    throw ConfigError("{}: the transformer does not fit the folder's text encoders or autoencoder",
                      config_.model.path);
  }
}

at::Tensor Objective::backward_pass(const dataset::Batch& batch, const StepPass& pass,
                                    fsdp::ShardedState& state, StepPhases& phases) {
  phases.begin(kEncodingPhase);
  const EncodedBatch encoded = encoder_.encode(batch);

  phases.begin("forward pass");
  std::vector<flow_matching::SampleKey> keys;
  for (size_t i = 0; i < batch.sample_ids.size(); ++i) {
    keys.push_back({static_cast<uint64_t>(batch.sample_ids[i]), static_cast<uint64_t>(batch.epochs[i])});
  }
  const double mu =
      config_.flow.shift == Shift::kResolution ? flow_matching::shift_mu({}, encoded.x0.size(1)) : 0.0;
  const auto noisy = flow_matching::add_noise(encoded.x0, static_cast<uint64_t>(config_.run.seed), keys,
                                              {config_.flow.timestep_mean, config_.flow.timestep_std, mu});

  state.begin_forward(pass.is_last_of_step);
  if (!angles_.cos.defined()) {  // the same for every batch
    const int64_t downsampling = encoder_.autoencoder_config().downsampling();
    angles_ = transformer_.rotary_angles(
        flow_matching::image_ids(config_.data.height / downsampling, config_.data.width / downsampling),
        encoded.txt.size(1));
  }
  ActivationCheckpointer runner(config_.memory.activation_checkpointing, transformer_.groups(), state);
  const at::Tensor velocity = transformer_.forward(
      {.img = noisy.x_t,
       .txt = encoded.txt,
       .angles = angles_,
       .timesteps = noisy.t,
       .y = encoded.y,
       .guidance = transformer_.config().guidance_embed ? at::full_like(noisy.t, config_.flow.guidance)
                                                        : at::Tensor()},
      runner);
  const at::Tensor loss =
      flow_matching::flow_matching_loss(velocity, noisy.target, pass.global_samples * encoded.x0[0].numel());
  phases.begin("backward pass");
  loss.backward(at::full_like(loss, pass.loss_scale));
  state.end_backward();
  return loss.detach();
}

}  // namespace flowshard::training
