#include "models/lora/module_index.h"

#include <numeric>

#include "core/error.h"
#include "core/nearest_name.h"

namespace flowshard::models {
namespace {

constexpr std::string_view kWeight = ".weight";

bool is_linear(const nn::Parameter& parameter) {
  const auto has = [&](const char* part) { return parameter.name.find(part) != std::string::npos; };
  return parameter.shape.size() == 2 && parameter.name.ends_with(kWeight) && !has("embedding.") &&
         !has("embed_tokens.") && !has("attention_bias.") && parameter.name != "shared.weight";
}

std::string module_of(const std::string& weight_name) {
  return weight_name.substr(0, weight_name.size() - kWeight.size());
}

}  // namespace

int64_t Module::out_features() const {
  return std::accumulate(parts.begin(), parts.end(), int64_t{0},
                         [](int64_t sum, const ModuleRows& part) { return sum + part.rows; });
}

ModuleIndex::ModuleIndex(const std::vector<LoraTarget>& targets) {
  for (const LoraTarget& target : targets) {
    std::map<std::string, nn::Parameter*> linears;
    for (nn::Parameter* parameter : target.parameters) {
      if (!is_linear(*parameter)) continue;
      linears[parameter->name] = parameter;
      add(target.component, module_of(parameter->name), {parameter, 0, parameter->shape[0], 0});
    }
    for (const TensorPart& part : target.stored_names) {
      const auto linear = linears.find(part.parameter);
      // A model whose own names are the stored ones is indexed already.
      if (linear == linears.end() || part.key == part.parameter) continue;
      nn::Parameter* parameter = linear->second;
      add(target.component, module_of(part.key),
          {parameter, part.row, part.rows < 0 ? parameter->shape[0] : part.rows, part.key_row});
    }
  }
}

void ModuleIndex::add(LoraComponent component, const std::string& name, const ModuleRows& rows) {
  Module& module = modules_[component][flattened(name)];
  check(module.name.empty() || module.name == name, "two linears of a model have one flattened name");
  module.name = name;
  module.parts.push_back(rows);
}

const Module* ModuleIndex::find(const LoraKey& key) const {
  const auto component = modules_.find(key.component);
  if (component == modules_.end()) return nullptr;
  const auto module = component->second.find(flattened(key.module));
  return module == component->second.end() ? nullptr : &module->second;
}

std::optional<std::string> ModuleIndex::nearest(const LoraKey& key) const {
  const auto component = modules_.find(key.component);
  if (component == modules_.end()) return std::nullopt;
  std::vector<std::string> names;
  for (const auto& [name, module] : component->second) names.push_back(name);
  const auto name = nearest_name(flattened(key.module), names);
  if (!name) return std::nullopt;
  return component->second.at(*name).name;
}

}  // namespace flowshard::models
