// Scenes as JSON, and the list of prompts on which a model trained on the coloured shapes is judged: a file
// of one object a line, {"prompt", "seed", "objects", "relation"}. Thread-safe: no state.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "dataset/shapes.h"

namespace flowshard::dataset {

struct ShapesPrompt {
  std::string prompt;
  uint64_t seed = 0;  // of the image to be generated
  Scene scene;        // what a perfect image may look like
};

/// {"objects": [{"color", "shape", "x", "y", "radius"}, ...]} and, for a pair, "relation".
nlohmann::ordered_json to_json(const Scene& scene);

/// `num_singles` of every colour and shape in turn, then `num_pairs` held-out pairs.
std::vector<ShapesPrompt> held_out_prompts(uint64_t seed, int num_singles, int num_pairs);

std::string to_json_lines(const std::vector<ShapesPrompt>& prompts);

/// Reads what to_json_lines wrote. Throws DataError with file and line for anything else, an empty file
/// included; ConfigError if there is no such file.
std::vector<ShapesPrompt> read_prompts(const std::filesystem::path& path);

}  // namespace flowshard::dataset
