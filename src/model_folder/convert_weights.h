// A component's weights under the keys of another format, bit for bit: rows move, values do not.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "checkpoint/training_checkpoint.h"
#include "model_folder/component_files.h"

namespace flowshard {

enum class KeyFormat { kDiffusers, kBfl };

struct ConvertOptions {
  std::filesystem::path output;  // a file for kBfl, a new folder for kDiffusers
  KeyFormat to = KeyFormat::kDiffusers;
  std::optional<at::ScalarType> dtype;  // none: that of each stored tensor
  bool replaces_file = false;           // kBfl: whether a file at `output` may be replaced
};

/// Writes FILE (kBfl; what shapes do not tell goes into its metadata) or FOLDER/config.json and
/// FOLDER/diffusion_pytorch_model.safetensors (kDiffusers), reads it back and publishes it at once. Holds one
/// tensor in memory at a time. Throws ConfigError (output in the way, scaled fp8 without a dtype to convert
/// to) or CheckpointError (the tensors do not fit the configuration; the output cannot be written) and leaves
/// nothing behind.
void convert(const TransformerFiles& files, const ConvertOptions& options);
void convert(const AutoencoderFiles& files, const ConvertOptions& options);
/// The transformer of a training checkpoint: `state` is "model" or "ema".
void convert(const checkpoint::TrainingCheckpoint& saved, const std::string& state,
             const models::FlowTransformerConfig& config, const ConvertOptions& options);

}  // namespace flowshard
