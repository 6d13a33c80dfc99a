// lora FOLDER PATH[:SCALE]...: the velocity of a diffusers transformer folder under LoRA files; and, as
// "base", that after taking them away again.
#include "inference/loras.h"
#include "load_model.h"
#include "models/flow_transformer/flow_transformer.h"
#include "parity.h"

namespace flowshard::parity {

Result lora(const Request& request) {
  const std::filesystem::path folder = request.arguments.at(0);
  models::FlowTransformer transformer(models::FlowTransformerConfig::from_diffusers(folder / "config.json"));
  const TensorNames names = flow_transformer_diffusers_names(transformer.config());
  load(transformer, dtype_of(request), checkpoint::Weights::open(folder), names);

  std::vector<inference::LoraOption> options;
  for (size_t i = 1; i < request.arguments.size(); ++i)
    options.push_back(inference::LoraOption::parse(request.arguments[i]));
  const auto loras = read_loras(options, request.options.value("lenient", false),
                                {{models::LoraComponent::kTransformer, transformer.parameters(), names}});

  const at::NoGradGuard no_grad;
  const auto velocity = [&] {
    const auto input = [&](const char* name) {
      return request.inputs.tensors().contains(name) ? request.inputs.tensor(name) : at::Tensor();
    };
    nn::DirectRunner runner;
    return transformer.forward({.img = input("img"),
                                .txt = input("txt"),
                                .angles = transformer.rotary_angles(input("img_ids"), input("txt").size(1)),
                                .timesteps = input("timesteps"),
                                .y = input("y"),
                                .guidance = input("guidance")},
                               runner);
  };
  Result result;
  attach(loras, transformer.parameters());
  result.tensors.emplace_back("velocity", velocity());
  detach(loras, transformer.parameters());
  result.tensors.emplace_back("base", velocity());
  return result;
}

}  // namespace flowshard::parity
