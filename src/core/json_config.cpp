#include "core/json_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>

#include "core/error.h"
#include "core/strict_json.h"

namespace flowshard {
namespace {

using nlohmann::json;

constexpr size_t kMaxShown = 200;  // characters of a value in a message

/// Values above the range of int64_t are not integers to us.
bool is_integer(const json& value) {
  return value.is_number_integer() &&
         !(value.is_number_unsigned() &&
           value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()});
}

bool is_size(const json& value) {
  return is_integer(value) && value.get<int64_t>() >= 1 && value.get<int64_t>() <= kMaxSize;
}

json parse(const std::filesystem::path& file) {
  std::ifstream stream;
  if (std::filesystem::is_regular_file(file)) stream.open(file);  // a pipe would wait for ever
  if (!stream.is_open()) {
    throw ConfigError("{}: {}; is this the folder of a model?", file.string(),
                      std::filesystem::exists(file) ? "cannot be read" : "no such file");
  }
  const std::string text(std::istreambuf_iterator<char>(stream), {});
  json value = parse_json(text, file.string());
  if (!value.is_object()) throw ConfigError("{}: holds no JSON object", file.string());
  return value;
}

}  // namespace

JsonConfig::JsonConfig(std::filesystem::path file)
    : file_(std::move(file)), object_(std::make_shared<const json>(parse(file_))) {}

const json* JsonConfig::find(std::string_view key, bool required) const {
  const auto found = object_->find(key);
  if (found != object_->end() && !found->is_null()) return &*found;
  if (required) throw ConfigError("{}: the key {} is missing", file_.string(), key);
  return nullptr;
}

bool JsonConfig::has(std::string_view key) const { return find(key, false) != nullptr; }

int64_t JsonConfig::integer(std::string_view key, std::optional<int64_t> fallback) const {
  const json* value = find(key, !fallback);
  if (!value) return *fallback;
  if (!is_integer(*value)) reject(key, "must be an integer");
  return value->get<int64_t>();
}

int64_t JsonConfig::size(std::string_view key, std::optional<int64_t> fallback) const {
  const json* value = find(key, !fallback);
  if (!value) return *fallback;
  if (!is_size(*value)) reject(key, fmt::format("must be an integer from 1 to {}", kMaxSize));
  return value->get<int64_t>();
}

int64_t JsonConfig::depth(std::string_view key, std::optional<int64_t> fallback) const {
  const int64_t value = integer(key, fallback);
  if (value < 0 || value > 1000) reject(key, "must be an integer from 0 to 1000");
  return value;
}

double JsonConfig::number(std::string_view key, std::optional<double> fallback) const {
  const json* value = find(key, !fallback);
  if (!value) return *fallback;
  if (!value->is_number()) reject(key, "must be a number");
  return value->get<double>();
}

double JsonConfig::positive(std::string_view key, std::optional<double> fallback) const {
  const double value = number(key, fallback);
  if (!(value > 0)) reject(key, "must be above 0");
  return value;
}

bool JsonConfig::boolean(std::string_view key, std::optional<bool> fallback) const {
  const json* value = find(key, !fallback);
  if (!value) return *fallback;
  if (!value->is_boolean()) reject(key, "must be true or false");
  return value->get<bool>();
}

std::string JsonConfig::text(std::string_view key, std::optional<std::string> fallback) const {
  const json* value = find(key, !fallback);
  if (!value) return *fallback;
  if (!value->is_string()) reject(key, "must be a text");
  return value->get<std::string>();
}

std::vector<int64_t> JsonConfig::sizes(std::string_view key) const {
  const json* value = find(key, true);
  if (!value->is_array() || value->empty() || !std::all_of(value->begin(), value->end(), is_size)) {
    reject(key, fmt::format("must be a list of integers from 1 to {}", kMaxSize));
  }
  return value->get<std::vector<int64_t>>();
}

std::vector<std::string> JsonConfig::texts(std::string_view key) const {
  const json* value = find(key, true);
  const auto is_text = [](const json& item) { return item.is_string(); };
  if (!value->is_array() || !std::all_of(value->begin(), value->end(), is_text)) {
    reject(key, "must be a list of texts");
  }
  return value->get<std::vector<std::string>>();
}

std::string JsonConfig::one_of(std::string_view key, std::initializer_list<std::string_view> allowed,
                               std::optional<std::string> fallback) const {
  const std::string value = text(key, std::move(fallback));
  if (std::find(allowed.begin(), allowed.end(), value) == allowed.end()) {
    reject(key, fmt::format("only {} is supported", fmt::join(allowed, " or ")));
  }
  return value;
}

void JsonConfig::reject(std::string_view key, std::string_view reason) const {
  const json* value = find(key, false);
  std::string text = value ? value->dump(-1, ' ', /*ensure_ascii=*/true) : "absent";
  if (text.size() > kMaxShown) text.replace(kMaxShown, text.npos, "...");
  throw ConfigError("{}: {} is {}, but {}", file_.string(), key, text, reason);
}

}  // namespace flowshard
