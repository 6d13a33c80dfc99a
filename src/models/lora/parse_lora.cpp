#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "models/lora/lora.h"
#include "models/lora/lora_scaling.h"
#include "models/lora/module_index.h"

namespace flowshard::models {
namespace {

constexpr size_t kShownKeys = 3;

/// The tensors of one module of the file.
struct Entry {
  LoraKey key;
  const Module* module;
  std::string name;  // the module as the keys spell it
  at::Tensor down, up, alpha, magnitude;
};

at::Tensor& slot(Entry& entry, LoraRole role) {
  switch (role) {
    case LoraRole::kDown:
      return entry.down;
    case LoraRole::kUp:
      return entry.up;
    case LoraRole::kAlpha:
      return entry.alpha;
    case LoraRole::kMagnitude:
      return entry.magnitude;
  }
  throw InternalError("unknown role of a LoRA key");
}

bool is_zero(const at::Tensor& tensor) { return !tensor.to(at::kFloat).ne(0).any().item<bool>(); }

void refuse_foreign_methods(const LoraFile& file) {
  for (const auto& [key, tensor] : file.tensors) {
    const auto method = foreign_method(key);
    if (method && !(is_weight_difference(key) && is_zero(tensor))) {
      throw ConfigError("{}: {} is the key of a {}, which is not supported: only LoRA and DoRA are",
                        file.source, key, *method);
    }
  }
}

/// [rows, columns] of a linear that may be stored as a 1x1 convolution.
at::Tensor as_matrix(const at::Tensor& tensor) {
  at::Tensor matrix = tensor;
  while (matrix.dim() > 2 && matrix.size(-1) == 1) matrix = matrix.squeeze(-1);
  return matrix;
}

void require_shape(const LoraFile& file, const Entry& entry, const char* what, const at::Tensor& tensor,
                   const std::vector<int64_t>& wanted) {
  if (tensor.sizes() == wanted) return;
  throw ConfigError(
      "{}: {}: the {} matrix is [{}], but this model needs [{}]: was the LoRA made for another model?",
      file.source, entry.name, what, fmt::join(tensor.sizes(), ", "), fmt::join(wanted, ", "));
}

void require_finite(const LoraFile& file, const Entry& entry, const at::Tensor& tensor) {
  if (tensor.is_floating_point() && at::isfinite(tensor.to(at::kFloat)).all().item<bool>()) return;
  throw ConfigError("{}: {}: holds numbers that are not finite, or whole numbers: the file is damaged",
                    file.source, entry.name);
}

double scaling_of(const LoraFile& file, const LoraMetadata& metadata, const Entry& entry, int64_t rank) {
  if (!entry.alpha.defined()) return metadata.scaling(entry.key, rank).value_or(1.0);
  if (entry.alpha.numel() != 1) throw ConfigError("{}: {}: alpha is not one number", file.source, entry.name);
  const double alpha = entry.alpha.to(at::kDouble).item<double>();
  if (!std::isfinite(alpha)) throw ConfigError("{}: {}: alpha is {}", file.source, entry.name, alpha);
  return alpha / static_cast<double>(rank);
}

/// The row norms of a DoRA, [rows] or undefined.
at::Tensor magnitude_of(const LoraFile& file, const Entry& entry) {
  if (!entry.magnitude.defined()) return {};
  const int64_t rows = entry.module->out_features();
  const at::Tensor& stored = entry.magnitude;
  if (stored.numel() != rows || (stored.dim() > 1 && stored.size(0) != rows)) {
    throw ConfigError(
        "{}: {}: the DoRA magnitude is [{}], but this linear has {} rows (norms of columns are not "
        "supported)",
        file.source, entry.name, fmt::join(stored.sizes(), ", "), rows);
  }
  require_finite(file, entry, stored);
  return stored.reshape({rows});
}

void add_adapters(const LoraFile& file, const LoraMetadata& metadata, const Entry& entry,
                  std::vector<LoraAdapter>& adapters) {
  if (!entry.down.defined() && !entry.up.defined()) {
    if (!entry.magnitude.defined()) return;  // an alpha alone changes nothing
    throw ConfigError("{}: {}: a DoRA magnitude without its down and up matrices", file.source, entry.name);
  }
  if (!entry.down.defined() || !entry.up.defined()) {
    throw ConfigError("{}: {}: the {} matrix is absent: is the file complete?", file.source, entry.name,
                      entry.down.defined() ? "up" : "down");
  }
  const at::Tensor down = as_matrix(entry.down), up = as_matrix(entry.up);
  const int64_t rank = down.dim() > 0 ? down.size(0) : 0;
  if (rank == 0) throw ConfigError("{}: {}: the rank is 0", file.source, entry.name);
  require_shape(file, entry, "down", down, {rank, entry.module->in_features()});
  require_shape(file, entry, "up", up, {entry.module->out_features(), rank});
  require_finite(file, entry, down);
  require_finite(file, entry, up);
  const double scaling = scaling_of(file, metadata, entry, rank);
  const at::Tensor magnitude = magnitude_of(file, entry);
  for (const ModuleRows& part : entry.module->parts) {
    adapters.push_back(
        {.parameter = part.parameter,
         .row = part.row,
         .down = down,
         .up = up.narrow(0, part.key_row, part.rows),
         .magnitude = magnitude.defined() ? magnitude.narrow(0, part.key_row, part.rows) : at::Tensor(),
         .scaling = scaling});
  }
}

/// The keys of a file that belong to no linear, by module.
class UnknownModules {
 public:
  void add(const std::string& key, const std::optional<LoraKey>& parts, const at::Tensor& tensor) {
    Keys& keys =
        modules_[parts ? std::pair(parts->component, parts->module) : std::pair(LoraComponent(), key)];
    keys.keys.push_back(key);
    const bool alpha = parts && parts->role == LoraRole::kAlpha;  // scales what the others change
    const bool understood = parts || is_weight_difference(key);
    keys.change |= !alpha && !(understood && is_zero(tensor));
  }

  /// Moves the keys to where they belong.
  void report(ParsedLora& parsed) const {
    for (const auto& [module, keys] : modules_) {
      auto& target = keys.change ? parsed.unmatched : parsed.without_effect;
      target.insert(target.end(), keys.keys.begin(), keys.keys.end());
    }
    std::ranges::sort(parsed.unmatched);
  }

 private:
  struct Keys {
    std::vector<std::string> keys;
    bool change = false;  // whether any of them would change something
  };
  std::map<std::pair<LoraComponent, std::string>, Keys> modules_;
};

}  // namespace

ParsedLora parse_lora(const LoraFile& file, const std::vector<LoraTarget>& targets) {
  refuse_foreign_methods(file);
  const ModuleIndex index(targets);
  ParsedLora parsed;
  std::map<const Module*, Entry> entries;
  UnknownModules unknown;
  for (const auto& [key, tensor] : file.tensors) {
    const auto parts = split_lora_key(key);
    const Module* module = parts ? index.find(*parts) : nullptr;
    if (!module) {
      unknown.add(key, parts, tensor);
      continue;
    }
    Entry& entry =
        entries.try_emplace(module, Entry{*parts, module, module->name, {}, {}, {}, {}}).first->second;
    at::Tensor& stored = slot(entry, parts->role);
    if (stored.defined()) {
      throw ConfigError("{}: {}: the file has two tensors of one kind for this linear", file.source, key);
    }
    stored = tensor;
    ++parsed.num_matched;
  }
  unknown.report(parsed);
  if (parsed.num_matched == 0) require_all_matched(parsed, file, targets);
  const LoraMetadata metadata(file);
  for (const auto& [module, entry] : entries) add_adapters(file, metadata, entry, parsed.adapters);
  if (parsed.adapters.empty()) throw ConfigError("{}: holds no LoRA", file.source);
  return parsed;
}

void require_all_matched(const ParsedLora& lora, const LoraFile& file,
                         const std::vector<LoraTarget>& targets) {
  if (lora.unmatched.empty() && lora.num_matched > 0) return;
  const ModuleIndex index(targets);
  std::string shown;
  for (size_t i = 0; i < std::min(kShownKeys, lora.unmatched.size()); ++i) {
    const std::string& key = lora.unmatched[i];
    shown += (i == 0 ? "" : ", ") + key;
    const auto parts = split_lora_key(key);
    const auto nearest = parts ? index.nearest(*parts) : std::nullopt;
    if (nearest) shown += " (nearest: " + *nearest + ")";
  }
  const size_t num_keys = file.tensors.size();
  if (num_keys == 0) throw ConfigError("{}: holds no tensor", file.source);
  if (lora.num_matched == 0) {
    throw ConfigError("{}: none of its {} keys matches a linear of this model: {}", file.source, num_keys,
                      shown);
  }
  throw ConfigError("{}: {} of its {} keys match no linear of this model: {}; --lora-lenient leaves them out",
                    file.source, lora.unmatched.size(), num_keys, shown);
}

}  // namespace flowshard::models
