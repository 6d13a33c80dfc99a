#include "checkpoint/training_state.h"

#include "checkpoint/checkpoint_json.h"
#include "core/error.h"

namespace flowshard::checkpoint {

using Json = nlohmann::json;

std::string to_text(const TrainingState& state) {
  const Json json = {{"step", state.step},     {"samples_seen", state.samples_seen}, {"run_id", state.run_id},
                     {"config", state.config}, {"model_path", state.model_path},     {"extra", state.extra}};
  try {
    return json.dump(1) + "\n";
  } catch (const Json::type_error&) {
    throw CheckpointError("the training state holds text that is not UTF-8 (configuration or model path)");
  }
}

namespace {

int64_t count_of(const Json& json, const char* key, const std::filesystem::path& path) {
  const Json& value = json.at(key);
  if (!value.is_number_integer() || value.get<int64_t>() < 0) {
    throw CheckpointError("{}: it is no training state: {} is {}", path.string(), key, value.dump());
  }
  return value.get<int64_t>();
}

}  // namespace

TrainingState read_training_state(const std::filesystem::path& path) {
  const Json json = read_json(path);
  try {
    if (!json.at("extra").is_object()) {
      throw CheckpointError("{}: it is no training state: extra is no object", path.string());
    }
    return {.step = count_of(json, "step", path),
            .samples_seen = count_of(json, "samples_seen", path),
            .run_id = json.at("run_id").get<std::string>(),
            .config = json.at("config").get<std::string>(),
            .model_path = json.at("model_path").get<std::string>(),
            .extra = json.at("extra")};
  } catch (const Json::exception& error) {
    throw CheckpointError("{}: it is no training state: {}", path.string(), error.what());
  }
}

}  // namespace flowshard::checkpoint
