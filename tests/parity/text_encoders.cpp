#include "load_model.h"
#include "models/text_encoder/clip_text_model.h"
#include "models/text_encoder/t5_encoder.h"

namespace flowshard::parity {
namespace {

checkpoint::Weights open_weights(const Request& request) {
  return checkpoint::Weights::open(request.arguments.at(0));
}

std::filesystem::path config_of(const Request& request) {
  return std::filesystem::path(request.arguments.at(0)) / "config.json";
}

// Each batch of ids by itself; results are called as the inputs are.
template <typename Model>
Result forward_each(const Request& request, Model& model) {
  Result result;
  for (const auto& [key, info] : request.inputs.tensors()) {
    result.tensors.emplace_back(key, model.forward(request.inputs.tensor(key)));
  }
  return result;
}

}  // namespace

Result clip(const Request& request) {
  const auto config = models::ClipTextConfig::from_file(config_of(request));
  models::ClipTextModel model(config);
  const checkpoint::Weights weights = open_weights(request);
  load(model, dtype_of(request), weights, clip_text_names(config, weights.keys()),
       models::kClipTextIgnoredKeys);
  return forward_each(request, model);
}

Result t5(const Request& request) {
  const auto config = models::T5Config::from_file(config_of(request));
  models::T5Encoder model(config);
  const checkpoint::Weights weights = open_weights(request);
  load(model, dtype_of(request), weights, t5_names(config, weights.keys()), models::kT5IgnoredKeys);
  return forward_each(request, model);
}

Result t5_buckets(const Request& request) {
  const auto option = [&](const char* name) { return request.options.at(name).get<int64_t>(); };
  return {.tensors = {{"buckets", models::t5_relative_buckets(option("length"), option("num_buckets"),
                                                              option("max_distance"))}},
          .metadata = {}};
}

}  // namespace flowshard::parity
