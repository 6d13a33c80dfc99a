// LoRA files: the keys of every naming (diffusers/peft, kohya, BFL/ComfyUI) become one list of adapters,
// which are attached beside the weights of a model and taken away again. Nothing is ever merged into a
// weight. One thread at a time, and never while the model computes.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/tensor_names.h"
#include "nn/parameter.h"

namespace flowshard::models {

/// What a safetensors file holds.
struct LoraFile {
  std::string source;  // for messages
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::string> metadata;
};

enum class LoraComponent { kTransformer, kTextEncoder, kTextEncoder2 };

/// A model that adapters may belong to. Its linears are its two-dimensional ".weight" parameters that are no
/// embeddings; they are known by their own names and by those of `stored_names` (diffusers' names, in which
/// one stored linear is a range of rows of a fused one).
struct LoraTarget {
  LoraComponent component;
  std::vector<nn::Parameter*> parameters;
  TensorNames stored_names;
};

/// The rows [row, row + R) of one linear gain s * scaling * up (down x), where the user chooses s.
struct LoraAdapter {
  nn::Parameter* parameter;
  int64_t row;
  at::Tensor down;       // [r, I]
  at::Tensor up;         // [R, r]
  at::Tensor magnitude;  // [R], DoRA's row norms; undefined for plain LoRA
  double scaling;        // alpha / r (rsLoRA: alpha / sqrt(r)); 1 if the file has no alpha
};

struct ParsedLora {
  std::vector<LoraAdapter> adapters;
  int64_t num_matched = 0;             // keys
  std::vector<std::string> unmatched;  // keys that belong to nothing in the targets
  // The same, but their tensors are zeros, so that they would change nothing: some trainers write the
  // embeddings that they left alone.
  std::vector<std::string> without_effect;
};

/// Reads a file for these targets. Throws ConfigError, naming file and key, if the file is of another kind
/// than LoRA and DoRA (LoKr, LoHa, OFT, ...), if half of a pair is absent, if a shape does not fit, if a
/// value is not finite, or if no key matches at all. Unmatched keys are reported, not thrown: see
/// require_all_matched.
ParsedLora parse_lora(const LoraFile& file, const std::vector<LoraTarget>& targets);

/// Throws ConfigError if there are unmatched keys: their number, the first few, and the nearest known names.
void require_all_matched(const ParsedLora& lora, const LoraFile& file,
                         const std::vector<LoraTarget>& targets);

/// Adds the adapters to their parameters' low-rank terms, in the dtype and on the device of the weights,
/// which must be materialized. Several calls add up; a scale may be negative or zero. A DoRA adapter scales
/// the rows as they are after the adapters attached before it, as peft does. Throws ConfigError if the scale
/// is not finite.
void attach_lora(const std::string& name, const std::vector<LoraAdapter>& adapters, double scale);

/// Takes away what was attached under `name`.
void detach_lora(const std::string& name, const std::vector<nn::Parameter*>& parameters);

}  // namespace flowshard::models
