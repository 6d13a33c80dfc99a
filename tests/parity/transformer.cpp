// transformer FOLDER: the velocity of a diffusers transformer folder, and what each block returns.
#include <fmt/format.h>

#include "load_model.h"
#include "models/flow_transformer/flow_transformer.h"
#include "parity.h"

namespace flowshard::parity {
namespace {

/// Keeps every block's outputs: "double_blocks.0.0" is its first.
class RecordingRunner : public nn::BlockRunner {
 public:
  nn::Tensors run(const nn::ParameterGroup& group, const nn::BlockFunction& block,
                  const nn::Tensors& inputs) override {
    nn::Tensors outputs = block(inputs);
    for (size_t i = 0; i < outputs.size(); ++i) {
      recorded.emplace_back(fmt::format("{}.{}", group.name, i), outputs[i].contiguous());
    }
    return outputs;
  }
  std::vector<checkpoint::NamedTensor> recorded;
};

}  // namespace

Result transformer(const Request& request) {
  const std::filesystem::path folder = request.arguments.at(0);
  models::FlowTransformer transformer(models::FlowTransformerConfig::from_diffusers(folder / "config.json"));
  load(transformer, dtype_of(request), checkpoint::Weights::open(folder),
       flow_transformer_diffusers_names(transformer.config()));

  const at::NoGradGuard no_grad;
  const auto input = [&](const char* name) {
    return request.inputs.tensors().contains(name) ? request.inputs.tensor(name) : at::Tensor();
  };
  RecordingRunner runner;
  const at::Tensor velocity =
      transformer.forward({.img = input("img"),
                           .txt = input("txt"),
                           .angles = transformer.rotary_angles(input("img_ids"), input("txt").size(1)),
                           .timesteps = input("timesteps"),
                           .y = input("y"),
                           .guidance = input("guidance")},
                          runner);
  Result result{.tensors = std::move(runner.recorded), .metadata = {}};
  result.tensors.emplace_back("velocity", velocity);
  return result;
}

}  // namespace flowshard::parity
