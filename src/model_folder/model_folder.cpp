#include "model_folder/model_folder.h"

#include <string>

#include "core/error.h"
#include "core/json_config.h"
#include "model_folder/component_files.h"

namespace flowshard {

namespace {

void require_parts(const std::filesystem::path& path, std::initializer_list<const char*> parts) {
  std::string missing;
  for (const char* part : parts) {
    if (!std::filesystem::is_directory(path / part))
      missing += std::string(missing.empty() ? "" : ", ") + part + "/";
  }
  if (!missing.empty())
    throw ConfigError("{}: the model folder lacks {}: is the download complete?", path.string(), missing);
}

}  // namespace

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
  require_parts(path, {"scheduler", "tokenizer", "tokenizer_2", "text_encoder", "text_encoder_2",
                       "transformer", "vae"});
  return {path};
}

ModelFolder ModelFolder::open_text_parts(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) throw ConfigError("{}: no such folder", path.string());
  require_parts(path, {"scheduler", "tokenizer", "tokenizer_2", "text_encoder", "text_encoder_2"});
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

}  // namespace flowshard
