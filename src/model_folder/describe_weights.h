// What weights files hold, by their keys, shapes and sizes alone: for a person who asks, before anything is
// loaded.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "checkpoint/weights.h"

namespace flowshard {

/// What the tensors are: "transformer, official format", "autoencoder, diffusers", "all in one file
/// (ComfyUI)", "LoRA (kohya)", "text encoder (T5)", ... or "tensors of an unknown model".
std::string kind_of_weights(const checkpoint::Weights& weights);

/// Adds to `report` what the weights file or component folder at `path` is: "kind"; "components", an object
/// of each one's tensors, parameters, bytes and dtypes; "configuration" of those that are FLUX's. Then checks
/// that every tensor fits, and throws ConfigError or CheckpointError if not: what is known by then is in the
/// report.
void describe_weights(const std::filesystem::path& path, nlohmann::ordered_json& report);

/// The same of a diffusers model folder: every component, and the tokenizers are read.
void describe_model_folder(const std::filesystem::path& path, nlohmann::ordered_json& report);

}  // namespace flowshard
