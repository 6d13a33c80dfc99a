#include "inference/load_transformer.h"

#include <memory>
#include <optional>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/training_checkpoint.h"
#include "core/error.h"

namespace flowshard::inference {
namespace {

std::filesystem::path config_of(const ModelFolder& folder) {
  return folder.part("transformer") / "config.json";
}

TransformerSource from_folder(const ModelFolder& folder) {
  return {.base = folder,
          .config = models::FlowTransformerConfig::from_diffusers(config_of(folder)),
          .fill = [folder](models::FlowTransformer& transformer, at::TensorOptions options) {
            fill_transformer(folder, transformer);  // nothing yet: checks before memory is taken
            nn::materialize(transformer.parameters(), options);
            fill_transformer(folder, transformer);
          }};
}

TransformerSource from_checkpoint(const std::filesystem::path& path) {
  const auto saved =
      std::make_shared<checkpoint::TrainingCheckpoint>(checkpoint::TrainingCheckpoint::open(path));
  const std::filesystem::path base = saved->state().model_path;
  if (!std::filesystem::is_directory(base)) {
    throw ConfigError("{}: its base model {} is gone: text encoders and autoencoder are read from there",
                      path.string(), base.string());
  }
  const ModelFolder folder = ModelFolder::open(base);
  return {.base = folder,
          .config = models::FlowTransformerConfig::from_diffusers(config_of(folder)),
          .fill = [saved](models::FlowTransformer& transformer, at::TensorOptions options) {
            nn::materialize(transformer.parameters(), options);
            const bool averaged = saved->has("ema", transformer.parameters()[0]->name);
            saved->fill_parameters(averaged ? "ema" : "model", values_of(transformer.parameters()));
          }};
}

}  // namespace

TransformerSource TransformerSource::open(const std::filesystem::path& path) {
  if (checkpoint::TrainingCheckpoint::is_checkpoint(path)) return from_checkpoint(path);
  if (const auto newest = checkpoint::latest_checkpoint(path / "checkpoints"))
    return from_checkpoint(*newest);
  return from_folder(ModelFolder::open(path));
}

}  // namespace flowshard::inference
