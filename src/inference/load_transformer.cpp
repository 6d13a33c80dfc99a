#include "inference/load_transformer.h"

#include <memory>
#include <optional>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/training_checkpoint.h"
#include "core/error.h"

namespace flowshard::inference {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPublishedAutoencoder = "ae.safetensors";

auto fill_from(TransformerFiles files) {
  return [files = std::move(files)](models::FlowTransformer& transformer) { files.fill(transformer); };
}

ModelFolder base_of(const ModelPaths& paths, const ModelFolder& folder) {
  return paths.text_encoders.empty() ? folder : ModelFolder::open_text_parts(paths.text_encoders);
}

AutoencoderFiles autoencoder_of(const fs::path& path) {
  const bool in_model_folder = fs::is_directory(path / "vae");
  return AutoencoderFiles::open(in_model_folder ? path / "vae" : path);
}

AutoencoderFiles autoencoder_of(const ModelPaths& paths, const ModelFolder& folder) {
  return autoencoder_of(paths.vae.empty() ? folder.path : paths.vae);
}

TransformerSource from_folder(const ModelPaths& paths) {
  const ModelFolder folder = ModelFolder::open(paths.model);
  TransformerFiles files = TransformerFiles::open(folder.part("transformer"));
  return {.base = base_of(paths, folder),
          .config = files.config,
          .fill = fill_from(std::move(files)),
          .autoencoder = autoencoder_of(paths, folder),
          .text_encoders = {},
          .found = "",
          .parts = {paths.model, paths.vae, paths.text_encoders}};
}

TransformerSource from_checkpoint(const fs::path& path, const ModelPaths& paths) {
  const auto saved =
      std::make_shared<checkpoint::TrainingCheckpoint>(checkpoint::TrainingCheckpoint::open(path));
  const fs::path base = saved->state().model_path;
  if (!fs::is_directory(base)) {
    throw ConfigError("{}: its base model {} is gone: text encoders and autoencoder are read from there",
                      path.string(), base.string());
  }
  const ModelFolder folder = ModelFolder::open(base);
  return {.base = base_of(paths, folder),
          .config = models::FlowTransformerConfig::from_diffusers(folder.part("transformer") / "config.json"),
          .fill =
              [saved](models::FlowTransformer& transformer) {
                const bool averaged = saved->has("ema", transformer.parameters()[0]->name);
                saved->fill_parameters(averaged ? "ema" : "model", values_of(transformer.parameters()));
              },
          .autoencoder = autoencoder_of(paths, folder),
          .text_encoders = {},
          .found = "",
          .parts = {path, base, paths.vae, paths.text_encoders}};
}

// The diffusers folder beside a weights file: its own, as in the published repository, or the one above it.
ModelFolder text_parts_near(const fs::path& file) {
  const fs::path folder = fs::absolute(file).parent_path();
  for (const fs::path& candidate : {folder, folder.parent_path()}) {
    if (fs::is_directory(candidate / "tokenizer_2")) return ModelFolder::open_text_parts(candidate);
  }
  throw ConfigError(
      "{}: this file holds no tokenizers and no scheduler, and beside it there are none: name a diffusers "
      "FLUX "
      "folder with --text-encoders",
      file.string());
}

// The text encoders in the file itself; those in a folder that the user names come first.
TextEncoderWeights text_encoders_of(const ModelPaths& paths, const SingleFile& parts) {
  if (!paths.text_encoders.empty()) return {};
  if (parts.other_text_encoders) {
    throw ConfigError(
        "{}: its text encoders are stored under keys that are not those of transformers: name a diffusers "
        "FLUX "
        "folder with --text-encoders",
        paths.model.string());
  }
  return {.clip = parts.clip, .t5 = parts.t5};
}

// `place` becomes where it comes from.
AutoencoderFiles autoencoder_near(const ModelPaths& paths, const SingleFile& parts, const ModelFolder& base,
                                  std::string& found, fs::path& place) {
  place = paths.vae;
  if (!paths.vae.empty()) return autoencoder_of(paths.vae);
  if (parts.autoencoder) return AutoencoderFiles::of(*parts.autoencoder, base.part("vae") / "config.json");
  const fs::path beside = paths.model.parent_path() / kPublishedAutoencoder;
  for (const fs::path& candidate : {beside, base.part("vae")}) {
    if (!fs::exists(candidate)) continue;
    found += fmt::format("; autoencoder from {}", candidate.string());
    place = candidate;
    return AutoencoderFiles::open(candidate);
  }
  throw ConfigError("{}: it holds no autoencoder, and {} does not exist: name one with --vae",
                    paths.model.string(), beside.string());
}

TransformerSource from_file(const ModelPaths& paths) {
  const SingleFile parts = SingleFile::split(checkpoint::Weights::open(paths.model));
  if (!parts.transformer) {
    throw ConfigError("{}: it holds no FLUX transformer (flowshard inspect says what a file is)",
                      paths.model.string());
  }
  TransformerFiles files =
      TransformerFiles::of(*parts.transformer, paths.model.parent_path() / "config.json");
  const TextEncoderWeights text_encoders = text_encoders_of(paths, parts);
  std::string found;
  const ModelFolder base = paths.text_encoders.empty() ? text_parts_near(paths.model)
                                                       : ModelFolder::open_text_parts(paths.text_encoders);
  if (paths.text_encoders.empty()) {
    found = fmt::format("{}tokenizers and scheduler from {}",
                        text_encoders.clip && text_encoders.t5 ? "" : "text encoders, ", base.path.string());
  }
  fs::path vae;
  AutoencoderFiles autoencoder = autoencoder_near(paths, parts, base, found, vae);
  return {.base = base,
          .config = files.config,
          .fill = fill_from(std::move(files)),
          .autoencoder = std::move(autoencoder),
          .text_encoders = text_encoders,
          .found = found.starts_with("; ") ? found.substr(2) : found,
          .parts = {paths.model, vae, base.path}};
}

}  // namespace

TransformerSource TransformerSource::open(const ModelPaths& paths) {
  if (fs::is_regular_file(paths.model)) return from_file(paths);
  if (checkpoint::TrainingCheckpoint::is_checkpoint(paths.model)) return from_checkpoint(paths.model, paths);
  if (const auto newest = checkpoint::latest_checkpoint(paths.model / "checkpoints"))
    return from_checkpoint(*newest, paths);
  return from_folder(paths);
}

}  // namespace flowshard::inference
