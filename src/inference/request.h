// What one image is made of: the request, its limits and its JSON form.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace flowshard::inference {

/// One image. What it looks like depends on these fields and the model alone.
struct Request {
  std::string prompt;
  std::string negative_prompt;  // used if true_cfg_scale > 1
  double true_cfg_scale = 1.0;  // > 1: true classifier-free guidance, two model calls a step
  double guidance = 3.5;        // the distilled guidance input; ignored by models without it
  int64_t height = 1024, width = 1024;
  int64_t num_steps = 28;
  int64_t max_sequence_length = 512;  // T5 tokens
  uint64_t seed = 0;
  std::filesystem::path init_image;  // not empty: image to image
  std::string init_image_xxh3;       // of that file's bytes (init_image.h); "": not looked at yet
  double strength = 0.6;             // of image to image, above 0 to 1: how far it may go from that picture
};

inline constexpr int64_t kMaxSide = 8192;
inline constexpr int64_t kMaxSequenceLength = 512;  // what FLUX.1 was trained with

/// Throws ConfigError if a field is impossible. Returns the request with the size that will be made: height
/// and width are rounded down to multiples of `size_multiple`, as diffusers does.
Request validated(const Request& request, int64_t size_multiple);

/// The number of steps that will be made: image to image leaves out the first ones.
int64_t steps_to_make(const Request& request);

/// Throws ConfigError, which begins with `source`, if `text` is no prompt: not UTF-8, a NUL byte, 1 MiB.
void check_prompt(const std::string& text, const std::string& source);

/// The JSON form, in prompt files, in the settings stored with pictures, in the lines of --json: "prompt",
/// "negative_prompt", "seed", "height", "width", "steps", "guidance", "true_cfg_scale", "max_sequence_length"
/// and, of image to image, "init_image", "init_image_xxh3", "strength".
nlohmann::ordered_json to_json(const Request& request);
const std::vector<std::string>& request_keys();

/// Gives the fields that have a key in `object` its value and leaves the others. Throws ConfigError naming
/// key and value if it is of another type.
void read_request(const nlohmann::json& object, Request& request);

}  // namespace flowshard::inference
