// Configuration: each key is registered once, and parsing, checks, documentation and the written-out
// effective configuration all come from that registration. A schema points into the struct it fills, so the
// struct must outlive it. Used by one thread.
//
//   TrainConfig config;                                      // its member initializers are the defaults
//   ConfigSchema schema("see flowshard train --explain");
//   schema.add("train.steps", &config.train.steps, "optimizer steps", {.min = 1}).required();
//   schema.assign(parse_toml(text, "run.toml"), "run.toml");
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/config_value.h"

namespace flowshard {

struct IntegerRange {
  int64_t min = std::numeric_limits<int64_t>::min();
  int64_t max = std::numeric_limits<int64_t>::max();
  int64_t multiple_of = 1;
};

/// Infinity and NaN are in no range.
struct NumberRange {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_excluded = false;
  bool max_excluded = false;
};

class ConfigSchema {
 public:
  /// `hint` tells the user where all keys are explained.
  explicit ConfigSchema(std::string hint) : hint_(std::move(hint)) {}
  ConfigSchema(const ConfigSchema&) = delete;
  ConfigSchema& operator=(const ConfigSchema&) = delete;

  /// What add() returns, to say more about the key.
  class Key {
   public:
    /// The key has no default: assign() fails if it is not given.
    void required() { is_required_ = true; }

   private:
    friend class ConfigSchema;
    std::string name_;
    std::string meaning_;
    std::string allowed_;  // "integer, 1 or more"
    std::string default_;  // as TOML
    bool is_required_ = false;
    std::function<bool(const ConfigEntry&)> assign_;  // false: not an allowed value
    std::function<ConfigValue()> value_;
  };

  /// Registers the key `name` ("section.key"). `meaning` is one line, with the unit where there is one.
  /// Strings and the elements of lists may not be empty, nor may the lists of required keys.
  Key& add(std::string name, int64_t* field, std::string meaning, IntegerRange range = {});
  Key& add(std::string name, double* field, std::string meaning, NumberRange range = {});
  Key& add(std::string name, bool* field, std::string meaning);
  Key& add(std::string name, std::string* field, std::string meaning);
  Key& add(std::string name, std::vector<std::string>* field, std::string meaning);
  template <typename Enum>
  Key& add(std::string name, Enum* field, std::string meaning,
           std::vector<std::pair<std::string, Enum>> choices);

  /// A condition on several keys: returns what is wrong, naming them, or "". Asked once all keys are right by
  /// themselves.
  void add_rule(std::function<std::string()> rule) { rules_.push_back(std::move(rule)); }

  /// Fills the fields. Of several entries for one key the last counts. Throws one ConfigError, in one line,
  /// for all mistakes: unknown keys (with the nearest known one), values of the wrong type or out of range,
  /// missing required keys, broken rules. `source` names the whole for the last two. Fields may be changed
  /// even so.
  void assign(const std::vector<ConfigEntry>& entries, const std::string& source);

  /// Every key with type, default and meaning, by section, as an aligned table.
  std::string explain() const;

  /// The fields as they are now, as a TOML document that assign() reads back to the same values.
  std::string dump() const;

 private:
  Key& insert(std::string name, std::string meaning, std::string allowed,
              std::function<bool(const ConfigEntry&)> assign, std::function<ConfigValue()> value);
  Key& add_choice(std::string name, std::string meaning, std::vector<std::string> names,
                  std::function<void(size_t)> set, std::function<size_t()> get);
  std::string problem_of(const ConfigEntry& entry);
  std::string unknown_key(const ConfigEntry& entry) const;
  bool is_section(const std::string& name) const;

  std::string hint_;
  std::vector<std::unique_ptr<Key>> keys_;  // in order of registration
  std::vector<std::function<std::string()>> rules_;
};

template <typename Enum>
ConfigSchema::Key& ConfigSchema::add(std::string name, Enum* field, std::string meaning,
                                     std::vector<std::pair<std::string, Enum>> choices) {
  std::vector<std::string> names;
  for (const auto& choice : choices) names.push_back(choice.first);
  const auto set = [field, choices](size_t index) { *field = choices[index].second; };
  const auto get = [field, choices] {
    size_t index = 0;
    while (choices[index].second != *field) ++index;
    return index;
  };
  return add_choice(std::move(name), std::move(meaning), std::move(names), set, get);
}

}  // namespace flowshard
