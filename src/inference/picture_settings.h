// The settings of a picture, stored in its file: all that its bytes depend on. Page:
// docs/picture_settings.md.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "image/encode.h"
#include "inference/load_transformer.h"
#include "inference/loras.h"
#include "inference/request.h"

namespace flowshard::inference {

struct PictureSettings {
  std::string version;  // of the program; not compared
  Request request;      // validated
  ModelPaths model;
  std::string model_fingerprint;  // of its files (fingerprint.h)
  std::vector<LoraOption> loras;
  std::vector<std::string> lora_fingerprints;
  bool lora_lenient = false;
  std::string device = "cpu";  // or "cuda"
  std::string precision;       // "fp32", "bf16"
  int quality = 95;            // of JPEG and WebP

  /// Paths become absolute. The quality is left out of a PNG's.
  nlohmann::ordered_json to_json(image::Format format) const;

  /// That JSON as the description of a picture file. Throws ConfigError if the format cannot hold as much.
  std::string description(image::Format format) const;
};

/// The settings stored in `picture`. Throws ConfigError if it cannot be read or has none.
PictureSettings read_picture_settings(const std::filesystem::path& picture);

/// Whether `picture` is a whole picture made with these settings.
bool is_made_with(const std::filesystem::path& picture, const PictureSettings& settings,
                  image::Format format);

}  // namespace flowshard::inference
