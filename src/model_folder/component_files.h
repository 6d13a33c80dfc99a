// The files of one component in any of the formats in which FLUX models are published, joined with the
// configuration and the key map that fit them:
//   - a folder of a diffusers model (config.json, weights in one file or in shards);
//   - a safetensors file of the official code (flux1-dev.safetensors, ae.safetensors);
//   - one file for all, as ComfyUI writes it, the components told apart by prefixes;
//   - a single file with diffusers keys, its config.json beside it.
// Opening throws ConfigError (not such a component, no configuration) or CheckpointError (unsound weights).
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <memory>
#include <optional>

#include "checkpoint/weights.h"
#include "models/autoencoder/autoencoder.h"
#include "models/flow_transformer/flow_transformer.h"

namespace flowshard {

struct TransformerFiles {
  checkpoint::Weights weights;
  models::FlowTransformerConfig config;
  TensorNames names;

  static TransformerFiles open(const std::filesystem::path& path);
  /// `config_json` is read if the keys are those of diffusers.
  static TransformerFiles of(checkpoint::Weights weights, const std::filesystem::path& config_json);

  /// Fills those parameters that are materialized, and checks that the files fit all.
  void fill(models::FlowTransformer& transformer) const;
};

struct AutoencoderFiles {
  checkpoint::Weights weights;
  models::AutoencoderConfig config;
  TensorNames names;

  static AutoencoderFiles open(const std::filesystem::path& path);
  static AutoencoderFiles of(checkpoint::Weights weights, const std::filesystem::path& config_json);

  std::unique_ptr<models::Autoencoder> load(at::TensorOptions options) const;
};

/// The components that one file holds.
struct SingleFile {
  std::optional<checkpoint::Weights> transformer, autoencoder;
  std::optional<checkpoint::Weights> clip, t5;  // with the keys of transformers
  bool other_text_encoders = false;             // there are some, under keys of another kind

  /// Throws CheckpointError if a tensor belongs to none of them.
  static SingleFile split(const checkpoint::Weights& weights);
};

}  // namespace flowshard
