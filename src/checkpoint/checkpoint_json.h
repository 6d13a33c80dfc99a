// The JSON of weights files and checkpoints: core/strict_json.h, whose errors are CheckpointErrors here.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "core/strict_json.h"

namespace flowshard::checkpoint {

nlohmann::json parse_json(std::string_view text, const std::string& source);

/// Throws CheckpointError also if the file cannot be read.
nlohmann::json read_json(const std::filesystem::path& path);

}  // namespace flowshard::checkpoint
