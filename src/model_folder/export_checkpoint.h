// The weights of a training checkpoint in the formats of others, without a GPU and with one tensor in memory
// at a time.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <optional>
#include <string>

#include "checkpoint/training_checkpoint.h"

namespace flowshard {

enum class ExportFormat {
  kBfl,        // one file of the official code
  kDiffusers,  // a new folder: a whole pipeline if the base model is at hand, else the transformer alone
  kFullState,  // one file with every state of every parameter, "exp_avg/img_in.weight"
};

struct ExportOptions {
  std::filesystem::path output;
  ExportFormat to = ExportFormat::kDiffusers;
  std::optional<at::ScalarType> dtype;  // none: as stored
  bool averaged = false;       // the averages of the weights in place of the weights; not for kFullState
  bool replaces_file = false;  // whether a file at `output` may be replaced by one
};

/// Writes it, compares it with the checkpoint and publishes it at once. Files of the base model become hard
/// links where the file system can make them. Returns a line for the user, "" if there is nothing to say.
/// Throws ConfigError (output in the way, no averages, base model gone and needed) or CheckpointError (the
/// parameters do not fit the base model's configuration; the output cannot be written) and leaves nothing
/// behind.
std::string export_checkpoint(const checkpoint::TrainingCheckpoint& saved, const ExportOptions& options);

}  // namespace flowshard
