#include "checkpoint/checkpoint_json.h"

#include "core/error.h"
#include "storage/mapped_file.h"

namespace flowshard::checkpoint {

nlohmann::json parse_json(std::string_view text, const std::string& source) {
  try {
    return flowshard::parse_json(text, source);
  } catch (const ConfigError& error) {
    throw CheckpointError("{}", error.what());
  }
}

nlohmann::json read_json(const std::filesystem::path& path) {
  try {
    return parse_json(storage::MappedFile(path).text(), path.string());
  } catch (const DataError& error) {
    throw CheckpointError("{}", error.what());
  }
}

}  // namespace flowshard::checkpoint
