#include "model_folder/model_folder.h"

#include <string>

#include "checkpoint/weights.h"
#include "core/error.h"
#include "core/json_config.h"

namespace flowshard {

ModelFolder ModelFolder::open(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) {
    throw ConfigError("{}: no such folder: a model is a diffusers folder with model_index.json",
                      path.string());
  }
  const std::string pipeline = JsonConfig(path / "model_index.json").text("_class_name");
  if (!pipeline.starts_with("Flux")) {
    throw ConfigError("{}: this is a '{}', not a FLUX.1 model", (path / "model_index.json").string(),
                      pipeline);
  }
  std::string missing;
  for (const char* part :
       {"scheduler", "tokenizer", "tokenizer_2", "text_encoder", "text_encoder_2", "transformer", "vae"}) {
    if (!std::filesystem::is_directory(path / part))
      missing += std::string(missing.empty() ? "" : ", ") + part + "/";
  }
  if (!missing.empty())
    throw ConfigError("{}: the model folder lacks {}: is the download complete?", path.string(), missing);
  return {path};
}

std::vector<checkpoint::NamedTensor> values_of(const std::vector<nn::Parameter*>& parameters) {
  const auto without_storage = at::TensorOptions(at::kFloat).device(at::kMeta);
  std::vector<checkpoint::NamedTensor> values;
  for (const nn::Parameter* parameter : parameters) {
    const bool materialized = parameter->value.defined();
    values.emplace_back(parameter->name,
                        materialized ? parameter->value : at::empty(parameter->shape, without_storage));
  }
  return values;
}

void load_parameters(const checkpoint::Weights& weights, const TensorNames& names,
                     const std::vector<nn::Parameter*>& parameters, at::TensorOptions options,
                     const std::vector<std::string>& ignored_keys) {
  checkpoint::fill_parameters(weights, names, values_of(parameters), ignored_keys);
  nn::materialize(parameters, options);
  checkpoint::fill_parameters(weights, names, values_of(parameters), ignored_keys);
}

std::unique_ptr<models::Autoencoder> load_autoencoder(const ModelFolder& folder, at::TensorOptions options) {
  const auto config = models::AutoencoderConfig::from_file(folder.part("vae") / "config.json");
  auto autoencoder = std::make_unique<models::Autoencoder>(config);
  load_parameters(checkpoint::Weights::open(folder.part("vae")), autoencoder_diffusers_names(config),
                  autoencoder->parameters(), options);
  return autoencoder;
}

void fill_transformer(const ModelFolder& folder, models::FlowTransformer& transformer) {
  checkpoint::fill_parameters(checkpoint::Weights::open(folder.part("transformer")),
                              flow_transformer_diffusers_names(transformer.config()),
                              values_of(transformer.parameters()));
}

}  // namespace flowshard
