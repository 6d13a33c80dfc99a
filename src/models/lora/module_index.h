// The linears of the targets under every name that LoRA files know them by.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "models/lora/lora_keys.h"

namespace flowshard::models {

/// Rows [key_row, key_row + rows) of what the file calls the module are rows [row, row + rows) of the
/// parameter.
struct ModuleRows {
  nn::Parameter* parameter;
  int64_t row, rows, key_row;
};

/// One linear as a file names it.
struct Module {
  std::string name;  // "transformer_blocks.0.attn.to_q"
  std::vector<ModuleRows> parts;

  int64_t out_features() const;
  int64_t in_features() const { return parts[0].parameter->shape[1]; }
};

class ModuleIndex {
 public:
  explicit ModuleIndex(const std::vector<LoraTarget>& targets);

  /// Null if the targets have no such linear.
  const Module* find(const LoraKey& key) const;

  /// The known name nearest to the module of an unmatched key, in the same component.
  std::optional<std::string> nearest(const LoraKey& key) const;

 private:
  void add(LoraComponent component, const std::string& name, const ModuleRows& rows);

  std::map<LoraComponent, std::map<std::string, Module>> modules_;  // by flattened name
};

}  // namespace flowshard::models
