#include "training/model_sizes.h"

#include "models/flow_transformer/flow_transformer.h"
#include "models/text_encoder/clip_text_model.h"
#include "models/text_encoder/t5_encoder.h"

namespace flowshard::training {
namespace {

int64_t count(const std::vector<nn::Parameter*>& parameters) {
  int64_t sum = 0;
  for (const nn::Parameter* parameter : parameters) sum += parameter->numel();
  return sum;
}

}  // namespace

ModelSizes model_sizes(const ModelFolder& folder) {
  const auto config_of = [&](const char* part) { return folder.part(part) / "config.json"; };
  models::FlowTransformer transformer(
      models::FlowTransformerConfig::from_diffusers(config_of("transformer")));
  const models::ClipTextModel clip(models::ClipTextConfig::from_file(config_of("text_encoder")));
  const models::T5Encoder t5(models::T5Config::from_file(config_of("text_encoder_2")));
  const auto autoencoder_config = models::AutoencoderConfig::from_file(config_of("vae"));
  const models::Autoencoder autoencoder(autoencoder_config);

  const models::FlowTransformerConfig& config = transformer.config();
  const std::vector<nn::ParameterGroup*> groups = transformer.groups();
  return {.hidden_size = config.hidden_size,
          .mlp_hidden_dim = config.mlp_hidden_dim,
          .in_channels = config.in_channels,
          .context_in_dim = config.context_in_dim,
          .root = count(groups.front()->parameters),
          .double_block = config.depth > 0 ? count(groups[1]->parameters) : 0,
          .single_block = config.depth_single_blocks > 0 ? count(groups.back()->parameters) : 0,
          .num_double_blocks = config.depth,
          .num_single_blocks = config.depth_single_blocks,
          .text_encoders = count(clip.parameters()) + count(t5.parameters()),
          .autoencoder = count(autoencoder.parameters()),
          .autoencoder_width = autoencoder_config.block_out_channels.front(),
          .downsampling = autoencoder_config.downsampling()};
}

}  // namespace flowshard::training
