// alpha as peft's configuration in the file's metadata states it.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "models/lora/lora_keys.h"

namespace flowshard::models {

/// The entry "lora_adapter_metadata" that diffusers writes.
class LoraMetadata {
 public:
  /// Throws ConfigError if the entry is there but is not what diffusers writes.
  explicit LoraMetadata(const LoraFile& file);

  /// alpha / rank (rsLoRA: alpha / sqrt(rank)) of a module; nothing if the metadata does not tell.
  std::optional<double> scaling(const LoraKey& key, int64_t rank) const;

 private:
  std::string source_;
  nlohmann::ordered_json config_;  // an object; of patterns that fit, the first one counts
};

}  // namespace flowshard::models
