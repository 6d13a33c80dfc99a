// A FLUX model in a diffusers folder, and its parts loaded: what training and inference both start from.
//
//   MODEL/model_index.json
//   MODEL/scheduler/  tokenizer/  tokenizer_2/  text_encoder/  text_encoder_2/  transformer/  vae/
//
// Loading throws ConfigError (no such part, a configuration that does not fit) or CheckpointError (unsound
// weights).
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <memory>
#include <vector>

#include "checkpoint/weights.h"
#include "core/tensor_names.h"
#include "models/autoencoder/autoencoder.h"
#include "models/flow_transformer/flow_transformer.h"
#include "nn/parameter.h"

namespace flowshard {

struct ModelFolder {
  std::filesystem::path path;

  /// Checks that every part's folder is there (the transformer may lack weights: training can start from
  /// random ones).
  static ModelFolder open(const std::filesystem::path& path);

  /// Checks only that the parts beside transformer and autoencoder are there: scheduler, tokenizers, text
  /// encoders.
  static ModelFolder open_text_parts(const std::filesystem::path& path);

  std::filesystem::path part(const char* name) const { return path / name; }
};

/// The values of parameters by name, as the weight loader wants them; of one that is not materialized a
/// tensor without storage, which the loader checks but does not fill.
std::vector<checkpoint::NamedTensor> values_of(const std::vector<nn::Parameter*>& parameters);

/// Gives the parameters their values from `weights`. What does not fit throws before any memory is taken: a
/// configuration of another model may ask for more than there is.
void load_parameters(const checkpoint::Weights& weights, const TensorNames& names,
                     const std::vector<nn::Parameter*>& parameters, at::TensorOptions options,
                     const std::vector<std::string>& ignored_keys = {});

}  // namespace flowshard
