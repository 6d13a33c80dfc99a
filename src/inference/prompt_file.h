// Files of prompts: what to make, line by line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "inference/request.h"

namespace flowshard::inference {

struct PromptLine {
  Request request;
  int64_t num_images = 1;        // image i has the seed of the request + i
  std::filesystem::path output;  // below the output folder; empty: numbered
};

/// A .jsonl file of one JSON object a line: "prompt" and any other key of a request (request.h),
/// "num_images", "output". What a line leaves out is as in `defaults`. Keys that resemble none of these are
/// the user's own. Throws ConfigError naming file and line: no JSON, a value of another type, a misspelt key,
/// no line at all.
std::vector<PromptLine> read_prompt_file(const std::filesystem::path& file, const PromptLine& defaults);

/// A text file that holds one prompt. Throws ConfigError.
std::string read_prompt(const std::filesystem::path& file);

}  // namespace flowshard::inference
