// Values of a JSON object that a person or another program wrote.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace flowshard::inference {

/// Gives `value` what stands under `key`, and leaves it if the object has no such key. All throw ConfigError,
/// "KEY is VALUE: it must be ...", for a value of another type.
void read_value(const nlohmann::json& object, const char* key, std::string& value);
void read_value(const nlohmann::json& object, const char* key, int64_t& value);
void read_value(const nlohmann::json& object, const char* key, uint64_t& value);
void read_value(const nlohmann::json& object, const char* key, double& value);
void read_value(const nlohmann::json& object, const char* key, bool& value);

}  // namespace flowshard::inference
