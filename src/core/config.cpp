#include "core/config.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/error.h"
#include "core/nearest_name.h"

namespace flowshard {
namespace {

std::string section_of(const std::string& key) { return key.substr(0, key.find('.')); }
std::string last_part_of(const std::string& key) { return key.substr(key.rfind('.') + 1); }

/// "integer, 16 to 4096, multiple of 16"
std::string allowed_text(const IntegerRange& range) {
  std::string text = "integer";
  const bool has_max = range.max != std::numeric_limits<int64_t>::max();
  if (range.min != std::numeric_limits<int64_t>::min()) {
    text +=
        has_max ? fmt::format(", {} to {}", range.min, range.max) : fmt::format(", {} or more", range.min);
  } else if (has_max) {
    text += fmt::format(", {} or less", range.max);
  }
  if (range.multiple_of != 1) text += fmt::format(", multiple of {}", range.multiple_of);
  return text;
}

/// "number, more than 0, less than 1"
std::string allowed_text(const NumberRange& range) {
  std::string text = "number";
  const bool has_min = std::isfinite(range.min), has_max = std::isfinite(range.max);
  if (has_min && has_max && !range.min_excluded && !range.max_excluded) {
    return fmt::format("number, {} to {}", range.min, range.max);
  }
  if (has_min) {
    text += fmt::format(", {}", range.min_excluded ? fmt::format("more than {}", range.min)
                                                   : fmt::format("{} or more", range.min));
  }
  if (has_max) {
    text += fmt::format(", {}", range.max_excluded ? fmt::format("less than {}", range.max)
                                                   : fmt::format("{} or less", range.max));
  }
  return text;
}

bool contains(const IntegerRange& range, int64_t value) {
  return value >= range.min && value <= range.max && value % range.multiple_of == 0;
}

bool contains(const NumberRange& range, double value) {
  const bool above = range.min_excluded ? value > range.min : value >= range.min;
  const bool below = range.max_excluded ? value < range.max : value <= range.max;
  return std::isfinite(value) && above && below;
}

/// The string that the entry gives. On the command line, 2024 for a string key is the string "2024".
const std::string* string_of(const ConfigEntry& entry) {
  if (const auto* text = std::get_if<std::string>(&entry.value)) return text;
  return entry.raw_text.empty() ? nullptr : &entry.raw_text;
}

/// One line, however many there are: a log of many ranks stays readable and main() prints one line.
void throw_problems(const std::vector<std::string>& problems) {
  if (problems.empty()) return;
  if (problems.size() == 1) throw ConfigError("{}", problems.front());
  std::string text = fmt::format("{} mistakes:", problems.size());
  for (size_t i = 0; i < problems.size(); ++i) text += fmt::format(" ({}) {}", i + 1, problems[i]);
  throw ConfigError("{}", text);
}

}  // namespace

ConfigSchema::Key& ConfigSchema::insert(std::string name, std::string meaning, std::string allowed,
                                        std::function<bool(const ConfigEntry&)> assign,
                                        std::function<ConfigValue()> value) {
  auto key = std::make_unique<Key>();
  key->name_ = std::move(name);
  key->meaning_ = std::move(meaning);
  key->allowed_ = std::move(allowed);
  key->default_ = to_toml(value());
  key->assign_ = std::move(assign);
  key->value_ = std::move(value);
  keys_.push_back(std::move(key));
  return *keys_.back();
}

ConfigSchema::Key& ConfigSchema::add(std::string name, int64_t* field, std::string meaning,
                                     IntegerRange range) {
  const auto assign = [field, range](const ConfigEntry& entry) {
    const auto* value = std::get_if<int64_t>(&entry.value);
    if (value == nullptr || !contains(range, *value)) return false;
    *field = *value;
    return true;
  };
  return insert(std::move(name), std::move(meaning), allowed_text(range), assign,
                [field] { return ConfigValue(*field); });
}

ConfigSchema::Key& ConfigSchema::add(std::string name, double* field, std::string meaning,
                                     NumberRange range) {
  const auto assign = [field, range](const ConfigEntry& entry) {
    double value = 0.0;
    if (const auto* number = std::get_if<double>(&entry.value)) {
      value = *number;
    } else if (const auto* integer = std::get_if<int64_t>(&entry.value)) {
      value = static_cast<double>(*integer);
    } else {
      return false;
    }
    if (!contains(range, value)) return false;
    *field = value;
    return true;
  };
  return insert(std::move(name), std::move(meaning), allowed_text(range), assign,
                [field] { return ConfigValue(*field); });
}

ConfigSchema::Key& ConfigSchema::add(std::string name, bool* field, std::string meaning) {
  const auto assign = [field](const ConfigEntry& entry) {
    const auto* value = std::get_if<bool>(&entry.value);
    if (value == nullptr) return false;
    *field = *value;
    return true;
  };
  return insert(std::move(name), std::move(meaning), "true, false", assign,
                [field] { return ConfigValue(*field); });
}

ConfigSchema::Key& ConfigSchema::add(std::string name, std::string* field, std::string meaning) {
  const auto assign = [field](const ConfigEntry& entry) {
    const std::string* value = string_of(entry);
    if (value == nullptr || value->empty()) return false;
    *field = *value;
    return true;
  };
  return insert(std::move(name), std::move(meaning), "string", assign,
                [field] { return ConfigValue(*field); });
}

ConfigSchema::Key& ConfigSchema::add(std::string name, std::vector<std::string>* field, std::string meaning) {
  const auto assign = [field](const ConfigEntry& entry) {
    const auto* value = std::get_if<std::vector<std::string>>(&entry.value);
    if (value == nullptr || std::count(value->begin(), value->end(), "") > 0) return false;
    *field = *value;
    return true;
  };
  return insert(std::move(name), std::move(meaning), "list of strings", assign,
                [field] { return ConfigValue(*field); });
}

ConfigSchema::Key& ConfigSchema::add_choice(std::string name, std::string meaning,
                                            std::vector<std::string> names, std::function<void(size_t)> set,
                                            std::function<size_t()> get) {
  const auto assign = [names, set](const ConfigEntry& entry) {
    const std::string* value = string_of(entry);
    if (value == nullptr) return false;
    const auto found = std::find(names.begin(), names.end(), *value);
    if (found == names.end()) return false;
    set(static_cast<size_t>(found - names.begin()));
    return true;
  };
  std::string allowed = fmt::format("\"{}\"", fmt::join(names, "\", \""));
  return insert(std::move(name), std::move(meaning), std::move(allowed), assign,
                [names, get] { return ConfigValue(names[get()]); });
}

bool ConfigSchema::is_section(const std::string& name) const {
  return std::any_of(keys_.begin(), keys_.end(),
                     [&](const auto& key) { return section_of(key->name_) == name; });
}

std::string ConfigSchema::unknown_key(const ConfigEntry& entry) const {
  if (is_section(entry.key)) {
    return fmt::format("{}: {} is a section and takes no value; {}", entry.where, entry.key, hint_);
  }
  // Compare without the section: a right name in a wrong section is a likely slip, and equal sections would
  // make any two keys look alike. Of equally near keys the first wins, so the section given comes first.
  std::vector<const Key*> keys;
  for (const auto& key : keys_) keys.push_back(key.get());
  std::stable_partition(keys.begin(), keys.end(),
                        [&](const Key* key) { return section_of(key->name_) == section_of(entry.key); });
  std::vector<std::string> parts;
  for (const Key* key : keys) parts.push_back(last_part_of(key->name_));
  const auto nearest = nearest_name(last_part_of(entry.key), parts);
  if (!nearest) return fmt::format("{}: unknown key {}; {}", entry.where, entry.key, hint_);
  const size_t index = static_cast<size_t>(std::find(parts.begin(), parts.end(), *nearest) - parts.begin());
  return fmt::format("{}: unknown key {}; did you mean {}?", entry.where, entry.key, keys[index]->name_);
}

std::string ConfigSchema::problem_of(const ConfigEntry& entry) {
  for (const auto& key : keys_) {
    if (key->name_ != entry.key) continue;
    const auto* list = std::get_if<std::vector<std::string>>(&entry.value);
    const bool lacks = key->is_required_ && list != nullptr && list->empty();
    if (!lacks && key->assign_(entry)) return "";
    return fmt::format("{}: {} is {}; allowed: {}", entry.where, entry.key, describe(entry.value),
                       key->allowed_);
  }
  const bool is_empty_section = std::holds_alternative<EmptyTable>(entry.value) && is_section(entry.key);
  return is_empty_section ? "" : unknown_key(entry);
}

void ConfigSchema::assign(const std::vector<ConfigEntry>& entries, const std::string& source) {
  std::map<std::string, const ConfigEntry*> last;
  for (const ConfigEntry& entry : entries) last[entry.key] = &entry;

  std::vector<std::string> problems;
  for (const ConfigEntry& entry : entries) {
    if (last.at(entry.key) != &entry) continue;
    std::string problem = problem_of(entry);
    if (!problem.empty()) problems.push_back(std::move(problem));
  }
  std::vector<std::string> missing;
  for (const auto& key : keys_) {
    if (key->is_required_ && !last.contains(key->name_)) missing.push_back(key->name_);
  }
  if (!missing.empty()) {
    problems.push_back(fmt::format("{}: missing: {}; {}", source, fmt::join(missing, ", "), hint_));
  }
  throw_problems(problems);

  for (const auto& rule : rules_) {
    const std::string problem = rule();
    if (!problem.empty()) problems.push_back(fmt::format("{}: {}", source, problem));
  }
  throw_problems(problems);
}

std::string ConfigSchema::explain() const {
  size_t name_width = 0, allowed_width = 0, default_width = 0;
  const auto default_of = [](const Key& key) { return key.is_required_ ? "required" : key.default_; };
  for (const auto& key : keys_) {
    name_width = std::max(name_width, key->name_.size());
    allowed_width = std::max(allowed_width, key->allowed_.size());
    default_width = std::max(default_width, default_of(*key).size());
  }
  std::string text = fmt::format("{:{}}  {:{}}  {:{}}  {}\n", "key", name_width, "allowed", allowed_width,
                                 "default", default_width, "meaning");
  std::string section;
  for (const auto& key : keys_) {
    if (section_of(key->name_) != section) text += '\n';
    section = section_of(key->name_);
    text += fmt::format("{:{}}  {:{}}  {:{}}  {}\n", key->name_, name_width, key->allowed_, allowed_width,
                        default_of(*key), default_width, key->meaning_);
  }
  return text;
}

std::string ConfigSchema::dump() const {
  std::string text, section;
  for (const auto& key : keys_) {
    if (section_of(key->name_) != section) {
      text += fmt::format("{}[{}]\n", section.empty() ? "" : "\n", section_of(key->name_));
    }
    section = section_of(key->name_);
    text += fmt::format("{} = {}\n", last_part_of(key->name_), to_toml(key->value_()));
  }
  return text;
}

}  // namespace flowshard
