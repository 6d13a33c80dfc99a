#include "core/strict_json.h"

#include <algorithm>
#include <set>
#include <vector>

#include "core/error.h"

namespace flowshard {
namespace {

constexpr int kMaxDepth = 32;

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& source) {
  using Json = nlohmann::json;
  // The parser takes a zero byte for the end of its input.
  const size_t zero = text.find('\0');
  if (zero != text.npos)
    throw ConfigError("{}: its JSON is damaged at byte {} of {}", source, zero, text.size());
  std::vector<std::set<std::string>> keys_of_open_objects;
  const auto on_event = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMaxDepth) throw ConfigError("{}: its JSON is nested too deeply", source);
    if (event == Json::parse_event_t::object_start) keys_of_open_objects.emplace_back();
    if (event == Json::parse_event_t::object_end) keys_of_open_objects.pop_back();
    if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys_of_open_objects.back().insert(key).second) {
        throw ConfigError("{}: the key {} stands twice", source, in_quotes(key));
      }
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), on_event);
  } catch (const Json::parse_error& error) {
    throw ConfigError("{}: its JSON is damaged at byte {} of {}", source, std::min(error.byte, text.size()),
                      text.size());
  } catch (const Json::out_of_range&) {
    throw ConfigError("{}: its JSON holds a number that is too large", source);
  }
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& source) {
  parse_json(text, source);
  return nlohmann::ordered_json::parse(text.begin(), text.end());
}

std::string in_quotes(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace flowshard
