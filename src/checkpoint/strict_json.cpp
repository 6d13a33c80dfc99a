#include "checkpoint/strict_json.h"

#include <set>
#include <vector>

#include "core/error.h"
#include "storage/mapped_file.h"

namespace flowshard::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 32;

}  // namespace

std::string in_quotes(std::string_view text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json parse_json(std::string_view text, const std::string& source) {
  // The parser takes a zero byte for the end of its input.
  const size_t zero = text.find('\0');
  if (zero != text.npos)
    throw CheckpointError("{}: its JSON is damaged at byte {} of {}", source, zero, text.size());
  std::vector<std::set<std::string>> keys_of_open_objects;
  const auto on_event = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMaxDepth) throw CheckpointError("{}: its JSON is nested too deeply", source);
    if (event == Json::parse_event_t::object_start) keys_of_open_objects.emplace_back();
    if (event == Json::parse_event_t::object_end) keys_of_open_objects.pop_back();
    if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys_of_open_objects.back().insert(key).second) {
        throw CheckpointError("{}: the key {} stands twice", source, in_quotes(key));
      }
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), on_event);
  } catch (const Json::parse_error& error) {
    throw CheckpointError("{}: its JSON is damaged at byte {} of {}", source, error.byte, text.size());
  } catch (const Json::out_of_range&) {
    throw CheckpointError("{}: its JSON holds a number that is too large", source);
  }
}

Json read_json(const std::filesystem::path& path) {
  try {
    return parse_json(storage::MappedFile(path).text(), path.string());
  } catch (const DataError& error) {
    throw CheckpointError("{}", error.what());
  }
}

}  // namespace flowshard::checkpoint
