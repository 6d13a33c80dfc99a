// JSON as files of weights and checkpoints need it: what other parsers let pass is an error here.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace flowshard::checkpoint {

/// Throws CheckpointError, which begins with `source`, for what is not UTF-8 JSON in the strict sense, for a
/// key that stands twice in one object, and for nesting that no file of ours has.
nlohmann::json parse_json(std::string_view text, const std::string& source);

/// The same from a file.
nlohmann::json read_json(const std::filesystem::path& path);

/// `text` in quotation marks, control characters escaped: for names from files in one-line messages.
std::string in_quotes(std::string_view text);

}  // namespace flowshard::checkpoint
