// The shards that a configuration names.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace flowshard::dataset {

/// The names in order, each pattern "a{000..011}b" or "a{x,y}b" replaced by what it stands for (several
/// braces multiply, the last one runs fastest; numbers keep the width of the first). Throws ConfigError for a
/// pattern that is malformed or stands for more than a million names.
std::vector<std::filesystem::path> expand_shards(const std::vector<std::string>& patterns);

/// Throws ConfigError if there is no shard, if one is named twice, or if any is not a readable file: all of
/// those by name, up to a limit. `key` is what the configuration calls the list.
void require_shards(const std::vector<std::filesystem::path>& shards, std::string_view key = "data.shards");

}  // namespace flowshard::dataset
