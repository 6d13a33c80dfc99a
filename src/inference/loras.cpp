#include "inference/loras.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <set>

#include "checkpoint/safetensors.h"
#include "core/error.h"

namespace flowshard::inference {
namespace {

models::LoraFile read(const std::filesystem::path& path) {
  if (!std::filesystem::is_regular_file(path)) {
    throw ConfigError("--lora {}: no such file: name a .safetensors file", path.string());
  }
  const checkpoint::SafetensorsFile file(path);
  models::LoraFile lora{.source = path.string(), .tensors = {}, .metadata = file.metadata()};
  for (const auto& [key, info] : file.tensors()) lora.tensors.emplace(key, file.tensor(key));
  return lora;
}

// One file may be given twice.
std::string adapter_name(const std::vector<LoadedLora>& loras, size_t i) {
  return fmt::format("{}:{}", i, loras[i].option.path.string());
}

}  // namespace

LoraOption LoraOption::parse(const std::string& text) {
  const size_t colon = text.rfind(':');
  const bool has_scale = colon != std::string::npos && text.find('/', colon) == std::string::npos &&
                         !std::filesystem::exists(text);
  if (!has_scale) return {.path = text};
  const std::string scale = text.substr(colon + 1);
  char* end = nullptr;
  const double value = std::strtod(scale.c_str(), &end);
  if (scale.empty() || *end != '\0' || !std::isfinite(value)) {
    throw ConfigError("--lora {}: the scale '{}' is not a finite number", text, scale);
  }
  return {.path = text.substr(0, colon), .scale = value};
}

std::vector<LoadedLora> read_loras(const std::vector<LoraOption>& options, bool lenient,
                                   const std::vector<models::LoraTarget>& targets) {
  std::vector<LoadedLora> loras;
  for (const LoraOption& option : options) {
    const models::LoraFile file = read(option.path);
    models::ParsedLora parsed = parse_lora(file, targets);
    if (!lenient) require_all_matched(parsed, file, targets);
    loras.push_back({option, std::move(parsed)});
  }
  return loras;
}

void attach(const std::vector<LoadedLora>& loras, const std::vector<nn::Parameter*>& parameters) {
  const std::set<const nn::Parameter*> wanted(parameters.begin(), parameters.end());
  for (size_t i = 0; i < loras.size(); ++i) {
    std::vector<models::LoraAdapter> adapters = loras[i].parsed.adapters;
    std::erase_if(adapters, [&](const auto& adapter) { return !wanted.contains(adapter.parameter); });
    attach_lora(adapter_name(loras, i), adapters, loras[i].option.scale);
  }
}

void detach(const std::vector<LoadedLora>& loras, const std::vector<nn::Parameter*>& parameters) {
  for (size_t i = 0; i < loras.size(); ++i) models::detach_lora(adapter_name(loras, i), parameters);
}

}  // namespace flowshard::inference
