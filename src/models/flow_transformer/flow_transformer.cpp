#include "models/flow_transformer/flow_transformer.h"

#include <fmt/format.h>

#include "core/error.h"

namespace flowshard::models {

FlowTransformer::FlowTransformer(const FlowTransformerConfig& config)
    : config_(config),
      img_in_(root_, "img_in", config.in_channels, config.hidden_size),
      txt_in_(root_, "txt_in", config.context_in_dim, config.hidden_size),
      time_in_(root_, "time_in", 256, config.hidden_size),
      vector_in_(root_, "vector_in", config.vec_in_dim, config.hidden_size),
      guidance_in_(config.guidance_embed
                       ? std::make_unique<MLPEmbedder>(root_, "guidance_in", 256, config.hidden_size)
                       : nullptr),
      final_layer_(root_, config) {
  for (int64_t i = 0; i < config.depth; ++i) {
    double_blocks_.push_back(std::make_unique<DoubleStreamBlock>(fmt::format("double_blocks.{}", i), config));
  }
  for (int64_t i = 0; i < config.depth_single_blocks; ++i) {
    single_blocks_.push_back(std::make_unique<SingleStreamBlock>(fmt::format("single_blocks.{}", i), config));
  }
}

at::Tensor FlowTransformer::forward(const FlowTransformerInput& input, nn::BlockRunner& runner) {
  check(input.guidance.defined() == config_.guidance_embed,
        "guidance is given exactly if the model has the input");
  check(input.img.size(-1) == config_.in_channels && input.txt.size(-1) == config_.context_in_dim &&
            input.y.size(-1) == config_.vec_in_dim,
        "channels of img, txt and y are those of the configuration");
  const at::ScalarType dtype = img_in_.weight.value.scalar_type();

  at::Tensor img = img_in_.forward(input.img.to(dtype));
  at::Tensor txt = txt_in_.forward(input.txt.to(dtype));
  at::Tensor vec = time_in_.forward(timestep_embedding(input.timesteps).to(dtype));
  if (guidance_in_) vec = vec + guidance_in_->forward(timestep_embedding(input.guidance).to(dtype));
  vec = at::silu(vec + vector_in_.forward(input.y.to(dtype)));

  const int64_t txt_length = txt.size(1);
  const at::Tensor ids = at::cat({at::zeros({txt_length, 3}, input.img_ids.options()), input.img_ids});
  const RotaryAngles angles =
      embed_nd(ids, config_.axes_dim, config_.theta, dtype == at::kDouble ? at::kDouble : at::kFloat);

  for (const auto& block : double_blocks_) {
    auto out =
        runner.run(block->group, [&](const nn::Tensors& inputs) { return block->forward(inputs, angles); },
                   {img, txt, vec});
    img = out[0];
    txt = out[1];
  }
  at::Tensor x = at::cat({txt, img}, 1);
  for (const auto& block : single_blocks_) {
    x = runner.run(block->group, [&](const nn::Tensors& inputs) { return block->forward(inputs, angles); },
                   {x, vec})[0];
  }
  return final_layer_.forward(x.narrow(1, txt_length, x.size(1) - txt_length), vec);
}

std::vector<nn::ParameterGroup*> FlowTransformer::groups() {
  std::vector<nn::ParameterGroup*> groups = {&root_};
  for (const auto& block : double_blocks_) groups.push_back(&block->group);
  for (const auto& block : single_blocks_) groups.push_back(&block->group);
  return groups;
}

std::vector<nn::Parameter*> FlowTransformer::parameters() {
  std::vector<nn::Parameter*> parameters;
  for (const nn::ParameterGroup* group : groups()) {
    parameters.insert(parameters.end(), group->parameters.begin(), group->parameters.end());
  }
  return parameters;
}

}  // namespace flowshard::models
