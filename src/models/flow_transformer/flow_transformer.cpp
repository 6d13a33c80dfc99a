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

at::Tensor FlowTransformer::silu_vec(const at::Tensor& timesteps, const at::Tensor& y,
                                     const at::Tensor& guidance) {
  check(guidance.defined() == config_.guidance_embed, "guidance is given exactly if the model has the input");
  check(y.size(-1) == config_.vec_in_dim, "channels of y are those of the configuration");
  const at::ScalarType dtype = img_in_.weight.value.scalar_type();
  at::Tensor vec = time_in_.forward(timestep_embedding(timesteps).to(dtype));
  if (guidance_in_) vec = vec + guidance_in_->forward(timestep_embedding(guidance).to(dtype));
  return at::silu(vec + vector_in_.forward(y.to(dtype)));
}

RotaryAngles FlowTransformer::rotary_angles(const at::Tensor& img_ids, int64_t txt_length) const {
  const at::Tensor ids = at::cat({at::zeros({txt_length, 3}, img_ids.options()), img_ids});
  const at::Tensor& like = img_in_.weight.value;
  const auto dtype = like.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return embed_nd(ids, config_.axes_dim, config_.theta, like.options().dtype(dtype));
}

Modulations FlowTransformer::modulations(const at::Tensor& timesteps, const at::Tensor& y,
                                         const at::Tensor& guidance, nn::BlockRunner& runner) {
  const at::Tensor vec = silu_vec(timesteps, y, guidance);
  Modulations modulations;
  const auto add = [&](auto& block) {
    const auto modulation = [&](const nn::Tensors& inputs) {
      return nn::Tensors{block->modulation(inputs[0])};
    };
    modulations.push_back(runner.run(block->group, modulation, {vec})[0]);
  };
  for (auto& block : double_blocks_) add(block);
  for (auto& block : single_blocks_) add(block);
  modulations.push_back(final_layer_.modulation(vec));
  return modulations;
}

bool is_modulation(const nn::Parameter& parameter) {
  return parameter.name.find("_mod.lin.") != std::string::npos ||
         parameter.name.find(".modulation.lin.") != std::string::npos;
}

Modulations at_step(const Modulations& modulations, int64_t step) {
  Modulations result;
  for (const at::Tensor& modulation : modulations) result.push_back(modulation.narrow(0, step, 1));
  return result;
}

at::Tensor FlowTransformer::forward(const FlowTransformerInput& input, nn::BlockRunner& runner) {
  check(input.img.size(-1) == config_.in_channels && input.txt.size(-1) == config_.context_in_dim,
        "channels of img and txt are those of the configuration");
  const at::ScalarType dtype = img_in_.weight.value.scalar_type();
  const bool has_modulations = !input.modulations.empty();
  // What a block is given last: its modulation, or what it makes it of.
  const at::Tensor vec = has_modulations ? at::Tensor() : silu_vec(input.timesteps, input.y, input.guidance);
  size_t index = 0;
  const auto condition = [&] { return has_modulations ? input.modulations[index++] : vec; };

  at::Tensor img = img_in_.forward(input.img.to(dtype));
  at::Tensor txt = txt_in_.forward(input.txt.to(dtype));
  const int64_t txt_length = txt.size(1);

  const auto run = [&](auto& block, nn::Tensors inputs) {
    inputs.push_back(condition());
    // Holds all it needs: backward may call it again.
    const auto function = [&block = *block, has_modulations, angles = input.angles](nn::Tensors tensors) {
      if (!has_modulations) tensors.back() = block.modulation(tensors.back());
      return block.forward(tensors, angles);
    };
    return runner.run(block->group, function, inputs);
  };
  for (auto& block : double_blocks_) {
    const auto out = run(block, {img, txt});
    img = out[0];
    txt = out[1];
  }
  at::Tensor x = at::cat({txt, img}, 1);
  for (auto& block : single_blocks_) x = run(block, {x})[0];
  const at::Tensor last = condition();
  return final_layer_.forward(x.narrow(1, txt_length, x.size(1) - txt_length),
                              has_modulations ? last : final_layer_.modulation(last));
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
