// Where the parts of a model come from: a diffusers folder, a training run, or single weights files.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "model_folder/component_files.h"
#include "model_folder/model_folder.h"
#include "model_folder/text_conditioning.h"
#include "models/flow_transformer/flow_transformer.h"

namespace flowshard::inference {

struct ModelPaths {
  std::filesystem::path model;  // a diffusers folder, a checkpoint, a run's output folder, or a weights file
  std::filesystem::path vae;    // empty: the model's; else a weights file or a diffusers folder of it
  std::filesystem::path text_encoders;  // empty: the model's; else a diffusers folder
};

struct TransformerSource {
  ModelFolder base;  // text encoders, tokenizers, scheduler
  models::FlowTransformerConfig config;
  /// Fills those parameters that are materialized, and checks that the weights fit all.
  std::function<void(models::FlowTransformer&)> fill;
  AutoencoderFiles autoencoder;
  TextEncoderWeights text_encoders;  // those that are not in `base`
  std::string found;                 // which parts were found where, if the user did not say; else ""
  /// The files and folders that all parts come from, that of the transformer first.
  std::vector<std::filesystem::path> parts;

  /// Heights and widths of images are multiples of this: 16 for FLUX.1.
  int64_t size_multiple() const { return 2 * autoencoder.config.downsampling(); }

  /// Tells by what is at `paths.model`: a checkpoint (step-00000200/), a run's output folder (its newest
  /// checkpoint), a diffusers model or a weights file. Of a checkpoint with averaged weights these are taken.
  /// Beside a weights file lie the other parts as in the published repository: ae.safetensors and the
  /// folders of diffusers. Throws ConfigError if a part is not found.
  static TransformerSource open(const ModelPaths& paths);
};

}  // namespace flowshard::inference
