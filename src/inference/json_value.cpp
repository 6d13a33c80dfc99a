#include "inference/json_value.h"

#include <fmt/format.h>

#include <limits>
#include <string_view>

#include "core/error.h"

namespace flowshard::inference {
namespace {

using Json = nlohmann::json;

// Long values are cut: they stand in a message of one line.
[[noreturn]] void reject(const char* key, const Json& value, std::string_view wanted) {
  constexpr size_t kMaxShown = 80;
  std::string text = value.dump(-1, ' ', true);
  if (text.size() > kMaxShown) text = text.substr(0, kMaxShown) + "...";
  throw ConfigError("{} is {}: it must be {}", key, text, wanted);
}

template <typename Accept, typename T>
void read(const Json& object, const char* key, T& value, Accept accept, const char* wanted) {
  const auto found = object.find(key);
  if (found == object.end()) return;
  if (!accept(*found)) reject(key, *found, wanted);
  value = found->template get<T>();
}

}  // namespace

void read_value(const Json& object, const char* key, std::string& value) {
  read(
      object, key, value, [](const Json& json) { return json.is_string(); }, "a text");
}

void read_value(const Json& object, const char* key, int64_t& value) {
  const auto fits = [](const Json& json) {
    return json.is_number_integer() &&
           !(json.is_number_unsigned() &&
             json.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()});
  };
  read(object, key, value, fits, "an integer");
}

void read_value(const Json& object, const char* key, uint64_t& value) {
  read(
      object, key, value, [](const Json& json) { return json.is_number_unsigned(); },
      "an integer of at least 0");
}

void read_value(const Json& object, const char* key, double& value) {
  read(
      object, key, value, [](const Json& json) { return json.is_number(); }, "a number");
}

void read_value(const Json& object, const char* key, bool& value) {
  read(
      object, key, value, [](const Json& json) { return json.is_boolean(); }, "true or false");
}

}  // namespace flowshard::inference
