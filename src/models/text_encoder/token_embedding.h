// The table that turns token ids into vectors, with the check that tokenizer and text encoder belong
// together.
#pragma once

#include <ATen/ATen.h>

#include "nn/parameter.h"

namespace flowshard::models {

/// ids [B, L] int64, table [V, D] -> [B, L, D]. Throws ConfigError if an id is not in [0, V). `ids` may be on
/// any device; ids on the CPU cost no synchronization.
at::Tensor embed_tokens(const at::Tensor& ids, const nn::Parameter& table);

}  // namespace flowshard::models
