#include "dataset/shard_list.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <string_view>

#include "core/error.h"

namespace flowshard::dataset {
namespace {

constexpr size_t kMaxShards = 1'000'000;
constexpr size_t kMaxNamed = 20;

std::optional<uint64_t> parse_number(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// What "000..011" or "x,y" stands for.
std::vector<std::string> alternatives(std::string_view inside, const std::string& pattern) {
  std::vector<std::string> result;
  const size_t dots = inside.find("..");
  if (dots != std::string_view::npos) {
    const std::string_view low_text = inside.substr(0, dots);
    const auto low = parse_number(low_text);
    const auto high = parse_number(inside.substr(dots + 2));
    if (!low || !high || *low > *high || *high - *low >= kMaxShards) {
      throw ConfigError("the pattern {} is malformed: {{{}}} is no range such as {{000000..000007}}", pattern,
                        inside);
    }
    for (uint64_t number = *low; number <= *high; ++number) {
      result.push_back(fmt::format("{:0{}}", number, low_text.size()));
    }
    return result;
  }
  if (inside.find(',') == std::string_view::npos) {
    throw ConfigError("the pattern {} is malformed: {{{}}} names no alternatives", pattern, inside);
  }
  for (size_t begin = 0; begin <= inside.size();) {
    const size_t end = std::min(inside.find(',', begin), inside.size());
    result.emplace_back(inside.substr(begin, end - begin));
    begin = end + 1;
  }
  return result;
}

std::vector<std::string> expand(const std::string& pattern) {
  std::vector<std::string> names{""};
  std::string_view rest = pattern;
  while (true) {
    const size_t open = std::min(rest.find('{'), rest.size());
    for (std::string& name : names) name += rest.substr(0, open);
    if (rest.substr(0, open).find('}') != std::string_view::npos) {
      throw ConfigError("the pattern {} is malformed: a brace is closed that was not opened", pattern);
    }
    if (open == rest.size()) return names;
    const size_t close = rest.find('}', open);
    if (close == std::string_view::npos) {
      throw ConfigError("the pattern {} is malformed: a brace is not closed", pattern);
    }
    const std::vector<std::string> parts = alternatives(rest.substr(open + 1, close - open - 1), pattern);
    if (names.size() * parts.size() > kMaxShards) {
      throw ConfigError("the pattern {} stands for more than {} shards", pattern, kMaxShards);
    }
    std::vector<std::string> longer;
    for (const std::string& name : names) {
      for (const std::string& part : parts) longer.push_back(name + part);
    }
    names = std::move(longer);
    rest.remove_prefix(close + 1);
  }
}

std::string list_names(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kMaxNamed);
  std::string text =
      fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<int64_t>(shown), ", "));
  if (shown < names.size()) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

}  // namespace

std::vector<std::filesystem::path> expand_shards(const std::vector<std::string>& patterns) {
  std::vector<std::filesystem::path> shards;
  for (const std::string& pattern : patterns) {
    for (std::string& name : expand(pattern)) shards.emplace_back(std::move(name));
  }
  return shards;
}

void require_shards(const std::vector<std::filesystem::path>& shards, std::string_view key) {
  if (shards.empty()) throw ConfigError("no shards are given: set {} to the tar files of the data set", key);
  std::vector<std::string> unreadable;
  std::vector<std::string> repeated;
  std::set<std::filesystem::path> seen;
  for (const std::filesystem::path& shard : shards) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(shard, error) || access(shard.c_str(), R_OK) != 0) {
      unreadable.push_back(shard.string());
    }
    if (!seen.insert(shard.lexically_normal()).second) repeated.push_back(shard.string());
  }
  if (!unreadable.empty()) {
    throw ConfigError("{} of {} shards are missing or cannot be read (check {}): {}", unreadable.size(),
                      shards.size(), key, list_names(unreadable));
  }
  if (!repeated.empty()) throw ConfigError("shards are named twice in {}: {}", key, list_names(repeated));
}

}  // namespace flowshard::dataset
