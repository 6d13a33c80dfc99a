#include "inference/picture_settings.h"

#include "core/error.h"
#include "core/error_context.h"
#include "core/strict_json.h"
#include "inference/json_value.h"
#include "storage/mapped_file.h"

namespace flowshard::inference {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kVersionKey = "flowshard";

std::string absolute_text(const fs::path& path) {
  fs::path result = fs::absolute(path).lexically_normal();
  if (!result.has_filename()) result = result.parent_path();
  return result.string();
}

// The settings' JSON; null if the picture has none. Throws DataError if it is no whole picture.
Json stored_settings(const fs::path& picture) {
  const storage::MappedFile file(picture);
  const auto bytes = file.bytes();
  const std::string text = image::read_description(
      {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, picture.string());
  try {
    Json settings = parse_json(text, picture.string());
    return settings.is_object() && settings.contains(kVersionKey) ? settings : Json();
  } catch (const ConfigError&) {  // the text of another program
    return {};
  }
}

// Paths need not be UTF-8: what is not is replaced.
std::string to_text(const nlohmann::ordered_json& object, bool ascii) {
  return object.dump(-1, ' ', ascii, nlohmann::ordered_json::error_handler_t::replace);
}

void require(bool possible, const char* key, const Json& object) {
  if (!possible) throw ConfigError("{} is {}, which it cannot be", key, object.value(key, Json()).dump());
}

void read_path(const Json& object, const char* key, fs::path& path) {
  std::string text;
  read_value(object, key, text);
  path = text;
}

void read_loras(const Json& object, PictureSettings& settings) {
  const auto loras = object.find("loras");
  if (loras == object.end()) return;
  for (const Json& lora : *loras) {
    if (!lora.is_object() || !lora.contains("path"))
      throw ConfigError("loras is not a list of objects with a path");
    LoraOption option;
    std::string fingerprint;
    read_path(lora, "path", option.path);
    read_value(lora, "scale", option.scale);
    read_value(lora, "fingerprint", fingerprint);
    settings.loras.push_back(option);
    settings.lora_fingerprints.push_back(fingerprint);
  }
}

}  // namespace

nlohmann::ordered_json PictureSettings::to_json(image::Format format) const {
  nlohmann::ordered_json object;
  object[kVersionKey] = version;
  object.update(inference::to_json(request));
  if (!request.init_image.empty()) object["init_image"] = absolute_text(request.init_image);
  object["model"] = absolute_text(model.model);
  if (!model.vae.empty()) object["vae"] = absolute_text(model.vae);
  if (!model.text_encoders.empty()) object["text_encoders"] = absolute_text(model.text_encoders);
  object["model_fingerprint"] = model_fingerprint;
  object["loras"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < loras.size(); ++i) {
    object["loras"].push_back({{"path", absolute_text(loras[i].path)},
                               {"scale", loras[i].scale},
                               {"fingerprint", lora_fingerprints.at(i)}});
  }
  object["lora_lenient"] = lora_lenient;
  object["device"] = device;
  object["precision"] = precision;
  if (format != image::Format::kPng) object["quality"] = quality;
  return object;
}

std::string PictureSettings::description(image::Format format) const {
  // EXIF's text is ASCII; a PNG's may be read by people.
  std::string text = to_text(to_json(format), /*ascii=*/format != image::Format::kPng);
  if (text.size() > image::max_description_bytes(format)) {
    throw ConfigError(
        "the settings of the picture take {} bytes, its format holds {}: shorten the prompts, or write PNG "
        "or "
        "WebP",
        text.size(), image::max_description_bytes(format));
  }
  return text;
}

PictureSettings read_picture_settings(const fs::path& picture) {
  Json object;
  try {
    object = stored_settings(picture);
  } catch (const DataError& error) {
    throw ConfigError("{}", error.what());
  }
  if (object.is_null()) {
    throw ConfigError("{}: holds no settings: name a picture that flowshard generate made", picture.string());
  }
  PictureSettings settings;
  try {
    read_value(object, kVersionKey, settings.version);
    read_request(object, settings.request);
    read_path(object, "model", settings.model.model);
    read_path(object, "vae", settings.model.vae);
    read_path(object, "text_encoders", settings.model.text_encoders);
    read_value(object, "model_fingerprint", settings.model_fingerprint);
    read_loras(object, settings);
    read_value(object, "lora_lenient", settings.lora_lenient);
    read_value(object, "device", settings.device);
    read_value(object, "precision", settings.precision);
    int64_t quality = settings.quality;
    read_value(object, "quality", quality);
    require(settings.device == "cpu" || settings.device == "cuda", "device", object);
    require(settings.precision == "fp32" || settings.precision == "bf16", "precision", object);
    require(quality >= 1 && quality <= 100, "quality", object);
    settings.quality = static_cast<int>(quality);
  } catch (const ConfigError&) {
    rethrow_within(picture.string() + ": its settings");
  }
  return settings;
}

bool is_made_with(const fs::path& picture, const PictureSettings& settings, image::Format format) {
  if (!fs::is_regular_file(picture)) return false;
  try {
    Json stored = stored_settings(picture);
    Json wanted = Json::parse(to_text(settings.to_json(format), /*ascii=*/true));
    for (Json* object : {&stored, &wanted}) {
      if (object->is_object()) object->erase(kVersionKey);
    }
    return stored == wanted;
  } catch (const DataError&) {
    return false;
  }
}

}  // namespace flowshard::inference
