// Where a transformer's weights come from: the transformer/ folder of a diffusers model, or a training run.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <functional>

#include "model_folder/model_folder.h"
#include "models/flow_transformer/flow_transformer.h"

namespace flowshard::inference {

struct TransformerSource {
  ModelFolder base;  // text encoders, autoencoder, scheduler
  models::FlowTransformerConfig config;
  /// Materializes and fills the parameters.
  std::function<void(models::FlowTransformer&, at::TensorOptions)> fill;

  /// Tells by what the folder holds: a checkpoint (step-00000200/), a run's output folder (its newest
  /// checkpoint) or a diffusers model. Of a checkpoint with averaged weights these are taken. Throws
  /// ConfigError if it is none of them.
  static TransformerSource open(const std::filesystem::path& path);
};

}  // namespace flowshard::inference
