// Strict reading of the JSON configuration files in model folders (config.json, scheduler_config.json,
// model_index.json). Every error is a ConfigError that names file and key. Copies are cheap; reading is
// thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace flowshard {

/// The largest size of a model: a weight of two such sizes has a byte count that int64_t holds.
inline constexpr int64_t kMaxSize = 1 << 24;

/// One JSON object. A key whose value is null counts as absent. An absent key takes the fallback; without one
/// it is an error. A value of another type is an error: no number is read from a string or a boolean.
class JsonConfig {
 public:
  /// Throws if the file is absent or does not hold one JSON object.
  explicit JsonConfig(std::filesystem::path file);

  const std::filesystem::path& file() const { return file_; }
  bool has(std::string_view key) const;

  int64_t integer(std::string_view key, std::optional<int64_t> fallback = {}) const;
  /// An integer of at least 1 and at most kMaxSize: a size or a count.
  int64_t size(std::string_view key, std::optional<int64_t> fallback = {}) const;
  /// A number of layers, 0 to 1000: they are made before the weights show whether they are there.
  int64_t depth(std::string_view key, std::optional<int64_t> fallback = {}) const;
  double number(std::string_view key, std::optional<double> fallback = {}) const;
  /// A number above 0.
  double positive(std::string_view key, std::optional<double> fallback = {}) const;
  bool boolean(std::string_view key, std::optional<bool> fallback = {}) const;
  std::string text(std::string_view key, std::optional<std::string> fallback = {}) const;
  /// A list of at least one size.
  std::vector<int64_t> sizes(std::string_view key) const;
  std::vector<std::string> texts(std::string_view key) const;

  /// The text under `key`, which must be one of `allowed`.
  std::string one_of(std::string_view key, std::initializer_list<std::string_view> allowed,
                     std::optional<std::string> fallback = {}) const;

  /// Throws the ConfigError "FILE: KEY is VALUE, but REASON".
  [[noreturn]] void reject(std::string_view key, std::string_view reason) const;

 private:
  const nlohmann::json* find(std::string_view key, bool required) const;

  std::filesystem::path file_;
  std::shared_ptr<const nlohmann::json> object_;
};

}  // namespace flowshard
