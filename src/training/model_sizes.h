// The sizes of a model from its config.json files alone: no weights are read, nothing is allocated.
#pragma once

#include "model_folder/model_folder.h"
#include "training/memory_estimate.h"

namespace flowshard::training {

/// Throws ConfigError if a part's config.json is absent or does not fit.
ModelSizes model_sizes(const ModelFolder& folder);

}  // namespace flowshard::training
