// The grammar of LoRA keys: prefix (component), module, suffix (what the tensor is to the module).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "models/lora/lora.h"

namespace flowshard::models {

enum class LoraRole { kDown, kUp, kAlpha, kMagnitude };

struct LoraKey {
  LoraComponent component;
  std::string module;  // as spelt in the file, without the component's prefix
  LoraRole role;
};

/// Nothing if the key has no suffix of a LoRA.
std::optional<LoraKey> split_lora_key(std::string_view key);

/// The name of the other method that a key like this belongs to ("LoKr", "LoHa", ...), if it does.
std::optional<std::string_view> foreign_method(std::string_view key);

/// Whether the tensor is added to a weight as it is. Some trainers write such tensors, all zero, beside a
/// LoRA.
bool is_weight_difference(std::string_view key);

/// Dots and underscores are one: kohya's files do not tell them apart.
std::string flattened(std::string_view module);

}  // namespace flowshard::models
