#include "models/lora/lora_scaling.h"

#include <cmath>

#include "core/error.h"
#include "core/strict_json.h"

namespace flowshard::models {
namespace {

const char* const kEntry = "lora_adapter_metadata";

const char* prefix_of(LoraComponent component) {
  switch (component) {
    case LoraComponent::kTransformer:
      return "transformer.";
    case LoraComponent::kTextEncoder:
      return "text_encoder.";
    case LoraComponent::kTextEncoder2:
      return "text_encoder_2.";
  }
  throw InternalError("unknown component of a LoRA");
}

/// peft's patterns are regular expressions for the end of a module's name. In files they are names, at times
/// with
/// "^" before and with escaped dots: only these are understood.
std::optional<std::string> literal(std::string pattern) {
  for (size_t at; (at = pattern.find("\\.")) != std::string::npos;) pattern.erase(at, 1);
  const std::string_view name = std::string_view(pattern).substr(pattern.starts_with('^') ? 1 : 0);
  if (name.find_first_of("^$*+?()[]{}|\\") != std::string_view::npos) return std::nullopt;
  return pattern;
}

bool applies_to(const std::string& pattern, const std::string& module) {
  if (pattern.starts_with('^')) return module == pattern.substr(1);
  return module == pattern || module.ends_with("." + pattern);
}

}  // namespace

LoraMetadata::LoraMetadata(const LoraFile& file)
    : source_(file.source), config_(nlohmann::ordered_json::object()) {
  const auto entry = file.metadata.find(kEntry);
  if (entry == file.metadata.end()) return;
  config_ = parse_ordered_json(entry->second, fmt::format("{}: metadata {}", source_, kEntry));
  if (!config_.is_object()) throw ConfigError("{}: metadata {} is not a JSON object", source_, kEntry);
}

std::optional<double> LoraMetadata::scaling(const LoraKey& key, int64_t rank) const {
  const std::string prefix = prefix_of(key.component);
  try {
    if (!config_.contains(prefix + "lora_alpha")) return std::nullopt;
    auto alpha = config_.at(prefix + "lora_alpha").get<double>();
    const auto patterns = config_.value(prefix + "alpha_pattern", nlohmann::ordered_json::object());
    for (const auto& [pattern, value] : patterns.items()) {
      const auto name = literal(pattern);
      if (!name) {
        throw ConfigError(
            "{}: metadata {}: the alpha pattern '{}' is a regular expression: list the modules by name",
            source_, kEntry, pattern);
      }
      if (applies_to(*name, key.module)) {
        alpha = value.get<double>();
        break;
      }
    }
    const bool rank_stabilized = config_.value(prefix + "use_rslora", false);
    return alpha / (rank_stabilized ? std::sqrt(static_cast<double>(rank)) : static_cast<double>(rank));
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError("{}: metadata {} has a value of the wrong type: {}", source_, kEntry, error.what());
  }
}

}  // namespace flowshard::models
