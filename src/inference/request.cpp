#include "inference/request.h"

#include "core/error.h"
#include "core/error_context.h"
#include "flow_matching/schedule.h"
#include "inference/json_value.h"
#include "models/tokenizer/unicode.h"

namespace flowshard::inference {
namespace {

constexpr size_t kMaxPromptBytes = size_t{1} << 20;
constexpr int64_t kMaxSteps = 1000;

template <typename T>
void check_range(const char* what, T value, T low, T high) {
  if (!(value >= low && value <= high))
    throw ConfigError("{} is {}: it must be from {} to {}", what, value, low, high);
}

}  // namespace

Request validated(const Request& request, int64_t size_multiple) {
  check_range("height", request.height, size_multiple, kMaxSide);
  check_range("width", request.width, size_multiple, kMaxSide);
  check_range("number of steps", request.num_steps, int64_t{1}, kMaxSteps);
  check_range("max sequence length", request.max_sequence_length, int64_t{1}, kMaxSequenceLength);
  check_range("guidance", request.guidance, 0.0, 1000.0);
  check_range("true CFG scale", request.true_cfg_scale, 0.0, 1000.0);
  if (!request.init_image.empty()) {
    if (!(request.strength > 0 && request.strength <= 1))
      throw ConfigError("strength is {}: it must be above 0 and at most 1", request.strength);
    if (steps_to_make(request) < 1) {
      throw ConfigError("strength is {}: of {} steps it leaves none to make", request.strength,
                        request.num_steps);
    }
  }
  Request result = request;
  result.height -= request.height % size_multiple;
  result.width -= request.width % size_multiple;
  return result;
}

int64_t steps_to_make(const Request& request) {
  if (request.init_image.empty()) return request.num_steps;
  return request.num_steps - flow_matching::first_step(request.num_steps, request.strength);
}

void check_prompt(const std::string& text, const std::string& source) {
  if (text.size() > kMaxPromptBytes) throw ConfigError("{}: a prompt longer than 1 MiB", source);
  try {
    models::unicode::check_utf8(text);
  } catch (const ConfigError&) {
    rethrow_within(source);
  }
  if (text.find('\0') != std::string::npos) throw ConfigError("{}: holds a NUL byte: is it a text?", source);
}

nlohmann::ordered_json to_json(const Request& request) {
  nlohmann::ordered_json object = {{"prompt", request.prompt},
                                   {"negative_prompt", request.negative_prompt},
                                   {"seed", request.seed},
                                   {"height", request.height},
                                   {"width", request.width},
                                   {"steps", request.num_steps},
                                   {"guidance", request.guidance},
                                   {"true_cfg_scale", request.true_cfg_scale},
                                   {"max_sequence_length", request.max_sequence_length}};
  if (!request.init_image.empty()) {
    object["init_image"] = request.init_image.string();
    object["init_image_xxh3"] = request.init_image_xxh3;
    object["strength"] = request.strength;
  }
  return object;
}

const std::vector<std::string>& request_keys() {
  static const std::vector<std::string> keys = {"prompt",     "negative_prompt", "seed",
                                                "height",     "width",           "steps",
                                                "guidance",   "true_cfg_scale",  "max_sequence_length",
                                                "init_image", "init_image_xxh3", "strength"};
  return keys;
}

void read_request(const nlohmann::json& object, Request& request) {
  read_value(object, "prompt", request.prompt);
  read_value(object, "negative_prompt", request.negative_prompt);
  read_value(object, "seed", request.seed);
  read_value(object, "height", request.height);
  read_value(object, "width", request.width);
  read_value(object, "steps", request.num_steps);
  read_value(object, "guidance", request.guidance);
  read_value(object, "true_cfg_scale", request.true_cfg_scale);
  read_value(object, "max_sequence_length", request.max_sequence_length);
  if (object.contains("init_image")) {
    std::string path;
    read_value(object, "init_image", path);
    request.init_image = path;
    request.init_image_xxh3.clear();  // of another picture
  }
  read_value(object, "init_image_xxh3", request.init_image_xxh3);
  read_value(object, "strength", request.strength);
  check_prompt(request.prompt, "prompt");
  check_prompt(request.negative_prompt, "negative_prompt");
}

}  // namespace flowshard::inference
