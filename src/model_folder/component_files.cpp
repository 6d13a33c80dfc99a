#include "model_folder/component_files.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "model_folder/model_folder.h"

namespace flowshard {
namespace {

namespace fs = std::filesystem;
using checkpoint::Weights;

constexpr std::array kTransformerPrefixes = {"model.diffusion_model.", "diffusion_model."};
constexpr std::array kAutoencoderPrefixes = {"vae.", "first_stage_model."};
constexpr const char* kTextEncodersPrefix = "text_encoders.";
constexpr const char* kClipPrefix = "text_encoders.clip_l.transformer.";
constexpr const char* kT5Prefix = "text_encoders.t5xxl.transformer.";
// ComfyUI's own parameters of its text encoders, which nobody computes with here.
constexpr std::array kTextEncoderExtras = {"text_encoders.clip_l.logit_scale",
                                           "text_encoders.t5xxl.logit_scale"};

bool is_transformer(const TensorListing& file) {
  return models::is_flow_transformer_bfl(file) || models::is_flow_transformer_diffusers(file);
}

bool is_autoencoder(const TensorListing& file) {
  return models::is_autoencoder_bfl(file) || models::is_autoencoder_diffusers(file);
}

template <size_t n>
std::optional<Weights> first_under(const Weights& weights, const std::array<const char*, n>& prefixes) {
  for (const char* prefix : prefixes) {
    if (weights.has_prefix(prefix)) return weights.under(prefix);
  }
  return std::nullopt;
}

void require_known_prefixes(const Weights& weights) {
  const auto known = [&](const std::string& key) {
    const auto begins_key = [&](const char* prefix) { return key.starts_with(prefix); };
    return key.starts_with(kTextEncodersPrefix) || std::ranges::any_of(kTransformerPrefixes, begins_key) ||
           std::ranges::any_of(kAutoencoderPrefixes, begins_key);
  };
  for (const std::string& key : weights.keys()) {
    if (!known(key)) {
      throw CheckpointError("{}: the tensor \"{}\" belongs to no component of a FLUX model", weights.source(),
                            key);
    }
  }
}

void find_text_encoders(const Weights& weights, SingleFile& parts) {
  if (weights.has_prefix(std::string(kClipPrefix) + "text_model.")) parts.clip = weights.under(kClipPrefix);
  if (weights.has_prefix(std::string(kT5Prefix) + "encoder.")) parts.t5 = weights.under(kT5Prefix);
  for (const std::string& key : weights.keys()) {
    const bool ours = (parts.clip && key.starts_with(kClipPrefix)) ||
                      (parts.t5 && key.starts_with(kT5Prefix)) ||
                      std::ranges::find(kTextEncoderExtras, key) != kTextEncoderExtras.end();
    if (key.starts_with(kTextEncodersPrefix) && !ours) parts.other_text_encoders = true;
  }
}

fs::path config_beside(const fs::path& path) {
  return (fs::is_directory(path) ? path : path.parent_path()) / "config.json";
}

}  // namespace

SingleFile SingleFile::split(const Weights& weights) {
  SingleFile parts;
  const TensorListing listing = weights.listing();
  if (is_transformer(listing)) {
    parts.transformer = weights;
  } else if (is_autoencoder(listing)) {
    parts.autoencoder = weights;
  } else {
    parts.transformer = first_under(weights, kTransformerPrefixes);
    parts.autoencoder = first_under(weights, kAutoencoderPrefixes);
    if (!parts.transformer && !parts.autoencoder) return parts;
    require_known_prefixes(weights);
    find_text_encoders(weights, parts);
  }
  return parts;
}

TransformerFiles TransformerFiles::of(Weights weights, const fs::path& config_json) {
  const TensorListing listing = weights.listing();
  if (models::is_flow_transformer_bfl(listing)) {
    const auto config = models::FlowTransformerConfig::from_bfl(listing);
    return {std::move(weights), config, flow_transformer_bfl_names(config)};
  }
  const auto config = models::FlowTransformerConfig::from_diffusers(config_json);
  return {std::move(weights), config, flow_transformer_diffusers_names(config)};
}

TransformerFiles TransformerFiles::open(const fs::path& path) {
  const Weights weights = Weights::open(path);
  if (fs::is_directory(path)) return of(weights, config_beside(path));
  const SingleFile parts = SingleFile::split(weights);
  if (!parts.transformer) {
    throw ConfigError("{}: it holds no FLUX transformer (flowshard inspect says what a file is)",
                      path.string());
  }
  return of(*parts.transformer, config_beside(path));
}

void TransformerFiles::fill(models::FlowTransformer& transformer) const {
  checkpoint::fill_parameters(weights, names, values_of(transformer.parameters()));
}

AutoencoderFiles AutoencoderFiles::of(Weights weights, const fs::path& config_json) {
  const TensorListing listing = weights.listing();
  if (models::is_autoencoder_bfl(listing)) {
    const auto config = models::AutoencoderConfig::from_bfl(listing);
    return {std::move(weights), config, autoencoder_bfl_names(config)};
  }
  const auto config = models::AutoencoderConfig::from_file(config_json);
  return {std::move(weights), config, autoencoder_diffusers_names(config)};
}

AutoencoderFiles AutoencoderFiles::open(const fs::path& path) {
  const Weights weights = Weights::open(path);
  if (fs::is_directory(path)) return of(weights, config_beside(path));
  const SingleFile parts = SingleFile::split(weights);
  if (!parts.autoencoder) {
    throw ConfigError("{}: it holds no autoencoder (flowshard inspect says what a file is)", path.string());
  }
  return of(*parts.autoencoder, config_beside(path));
}

std::unique_ptr<models::Autoencoder> AutoencoderFiles::load(at::TensorOptions options) const {
  auto autoencoder = std::make_unique<models::Autoencoder>(config);
  load_parameters(weights, names, autoencoder->parameters(), options);
  return autoencoder;
}

}  // namespace flowshard
