// The LoRA files of a pipeline.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "models/lora/lora.h"

namespace flowshard::inference {

struct LoraOption {
  std::filesystem::path path;
  double scale = 1;

  /// "PATH" or "PATH:SCALE". Throws ConfigError if the scale is not a finite number.
  static LoraOption parse(const std::string& text);
};

/// One file that fits the model.
struct LoadedLora {
  LoraOption option;
  models::ParsedLora parsed;
};

/// Reads the files for these models, whose weights need not be there yet. Throws ConfigError if a file does
/// not fit, CheckpointError if it is unsound. Keys that match nothing are an error unless `lenient`.
std::vector<LoadedLora> read_loras(const std::vector<LoraOption>& options, bool lenient,
                                   const std::vector<models::LoraTarget>& targets);

/// Attaches to these parameters what the files have for them, in this order; the weights must be there.
void attach(const std::vector<LoadedLora>& loras, const std::vector<nn::Parameter*>& parameters);

/// Takes them away again: the models compute the same bits as before.
void detach(const std::vector<LoadedLora>& loras, const std::vector<nn::Parameter*>& parameters);

}  // namespace flowshard::inference
