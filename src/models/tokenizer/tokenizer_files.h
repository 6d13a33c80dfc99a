// The files of a tokenizer folder that every kind of tokenizer shares: tokenizer_config.json,
// special_tokens_map.json, added_tokens.json and the added tokens of tokenizer.json. All of them may be
// absent.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "models/tokenizer/added_tokens.h"

namespace flowshard::models {

/// The JSON value in `file`. Throws ConfigError if the file is absent or is not JSON.
nlohmann::json read_json(const std::filesystem::path& file);

/// Throws ConfigError, naming the file, where `read` meets JSON of another shape than it expects.
template <typename Read>
auto read_shape(const std::filesystem::path& file, Read read) {
  try {
    return read();
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError("{}: {}", file.string(), error.what());
  }
}

/// The whole number from 0 to 2^31 - 1 that `value`, called `name` in `file`, holds. Throws ConfigError for
/// anything else.
int64_t to_id(const nlohmann::json& value, const std::filesystem::path& file, const std::string& name);

struct SpecialTokens {
  std::map<std::string, std::string, std::less<>> named;  // "pad_token" and the like to content
  std::vector<AddedToken> added;                          // in the order in which new ids are given out
};

/// `defaults` holds the tokens that the tokenizer has when no file says otherwise.
SpecialTokens read_special_tokens(const std::filesystem::path& folder, const SpecialTokens& defaults);

/// The id of a named token. Throws ConfigError if the folder leaves it out.
int64_t named_id(const std::filesystem::path& folder, const SpecialTokens& special, const AddedTokens& added,
                 std::string_view name);

}  // namespace flowshard::models
