#include "training/objective.h"

#include "core/error.h"
#include "training/precision.h"

namespace flowshard::training {

Objective::Objective(const ModelFolder& folder, const TrainConfig& config, at::Device device)
    : config_(config),
      transformer_(models::FlowTransformerConfig::from_diffusers(folder.part("transformer") / "config.json")),
      encoder_(folder, config, at::TensorOptions(precision_of(config).buffer_dtype).device(device)),
      pass_(config, transformer_, encoder_.autoencoder_config().downsampling()) {
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
  std::vector<flow_matching::SampleKey> keys;
  for (size_t i = 0; i < batch.sample_ids.size(); ++i) {
    keys.push_back({static_cast<uint64_t>(batch.sample_ids[i]), static_cast<uint64_t>(batch.epochs[i])});
  }
  return pass_.backward(encoded, keys, pass, state, phases);
}

at::Tensor Objective::validation_losses(const dataset::Batch& batch, int64_t first_sample,
                                        const at::Tensor& t, fsdp::ShardedState& state) {
  const EncodedBatch encoded = encoder_.encode_validation(batch);
  return pass_.forward(encoded, flow_matching::add_validation_noise(encoded.x0, first_sample, t), state);
}

}  // namespace flowshard::training
