#include "models/tokenizer/tokenizer_files.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <iterator>
#include <system_error>

#include "core/strict_json.h"

namespace flowshard::models {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr std::array kNames = {"bos_token", "eos_token", "unk_token", "sep_token",
                               "pad_token", "cls_token", "mask_token"};
constexpr std::array kListKeys = {"extra_special_tokens", "additional_special_tokens"};

AddedToken to_token(const json& value) {
  if (value.is_string()) {
    return {.content = value.get<std::string>()};
  }
  const bool special = value.value("special", true);
  return {.content = value.at("content").get<std::string>(),
          .single_word = value.value("single_word", false),
          .lstrip = value.value("lstrip", false),
          .rstrip = value.value("rstrip", false),
          .normalized = value.value("normalized", !special)};
}

json read_object_if_present(const fs::path& file) {
  std::error_code ignored;  // what cannot be looked at counts as absent
  if (!fs::exists(file, ignored)) {
    return json::object();
  }
  auto value = read_json(file);
  if (!value.is_object()) {
    throw ConfigError("{} is not a JSON object", file.string());
  }
  return value;
}

void refuse_unsupported(const fs::path& file, const json& config) {
  for (const auto* key : {"padding_side", "truncation_side"}) {
    if (config.value(key, "right") != "right") {
      throw ConfigError("{}: {} is not \"right\", the one side that FLUX pads and cuts", file.string(), key);
    }
  }
  if (config.value("split_special_tokens", false)) {
    throw ConfigError("{}: split_special_tokens is not supported: remove it", file.string());
  }
}

/// The list of further special tokens; null if there is none.
json listed_tokens(const json& config) {
  for (const auto* key : kListKeys) {
    if (config.contains(key) && config[key].is_array() && !config[key].empty()) {
      return config[key];
    }
  }
  return nullptr;
}

/// The tokens that a file lists with their ids. tokenizer_config.json speaks for all files if it lists any.
std::map<int64_t, AddedToken> tokens_by_id(const fs::path& folder, const json& config) {
  std::map<int64_t, AddedToken> tokens;
  if (config.contains("added_tokens_decoder")) {
    for (const auto& [id, token] : config["added_tokens_decoder"].items()) {
      int32_t number = -1;
      const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), number);
      if (error != std::errc() || end != id.data() + id.size() || number < 0) {
        throw ConfigError("{}: the key {} of added_tokens_decoder is not a whole number from 0 to 2^31 - 1",
                          (folder / "tokenizer_config.json").string(), in_quotes(id));
      }
      tokens[number] = to_token(token);
    }
    return tokens;
  }
  const auto file = folder / "added_tokens.json";
  read_shape(file, [&] {
    const auto is_special = [&config](const std::string& content) {
      const auto has_content = [&content](const json& value) {
        return !value.is_null() && to_token(value).content == content;
      };
      return std::ranges::any_of(listed_tokens(config), has_content) ||
             std::ranges::any_of(kNames,
                                 [&](const char* name) { return has_content(config.value(name, json())); });
    };
    const auto ids = read_object_if_present(file);
    for (const auto& [content, id] : ids.items()) {
      tokens[to_id(id, file, "the id of " + in_quotes(content))] = {.content = content,
                                                                    .normalized = !is_special(content)};
    }
  });
  const auto whole = folder / "tokenizer.json";
  read_shape(whole, [&] {
    const auto contents = read_object_if_present(whole);
    for (const auto& token : contents.value("added_tokens", json::array())) {
      tokens[to_id(token.at("id"), whole, "the id of an added token")] = to_token(token);
    }
  });
  return tokens;
}

}  // namespace

json read_json(const fs::path& file) {
  std::ifstream stream;
  if (fs::is_regular_file(file)) stream.open(file, std::ios::binary);
  if (!stream.is_open()) {
    throw ConfigError("cannot read {}: check the path of the tokenizer folder", file.string());
  }
  return parse_json(std::string(std::istreambuf_iterator<char>(stream), {}), file.string());
}

int64_t to_id(const json& value, const fs::path& file, const std::string& name) {
  // Compared as unsigned: a number of JSON may also be a fraction, or beyond int64_t.
  if (!value.is_number_unsigned() || value.get<uint64_t>() > INT32_MAX) {
    throw ConfigError("{}: {} is {}, not a whole number from 0 to 2^31 - 1", file.string(), name,
                      value.dump());
  }
  return value.get<int64_t>();
}

SpecialTokens read_special_tokens(const fs::path& folder, const SpecialTokens& defaults) {
  const auto file = folder / "tokenizer_config.json";
  auto config = read_object_if_present(file);
  return read_shape(file, [&] {
    refuse_unsupported(file, config);
    if (!config.contains("added_tokens_decoder")) {
      config.update(read_object_if_present(folder / "special_tokens_map.json"));
    }

    SpecialTokens special;
    const auto by_id = tokens_by_id(folder, config);
    for (const auto& [id, token] : by_id) {
      special.added.push_back(token);
    }
    const auto is_listed = [&by_id](const std::string& content) {
      return std::ranges::any_of(by_id, [&](const auto& entry) { return entry.second.content == content; });
    };
    // Flags of a token listed by id win; of tokens given in other ways, those of the last that is new.
    std::vector<json> seen;
    const auto add = [&](const json& value) {
      auto token = to_token(value);
      if (!is_listed(token.content) && std::ranges::find(seen, value) == seen.end()) {
        seen.push_back(value);
        special.added.push_back(std::move(token));
      }
    };
    for (const auto* name : kNames) {
      const auto known = defaults.named.find(name);
      const auto value = config.value(name, known == defaults.named.end() ? json() : json(known->second));
      if (!value.is_null()) {
        special.named[name] = to_token(value).content;
        add(value);
      }
    }
    if (const auto listed = listed_tokens(config); listed.is_null()) {
      std::ranges::copy_if(defaults.added, std::back_inserter(special.added),
                           [&](const AddedToken& token) { return !is_listed(token.content); });
    } else {
      std::ranges::for_each(listed, add);
    }
    return special;
  });
}

int64_t named_id(const fs::path& folder, const SpecialTokens& special, const AddedTokens& added,
                 std::string_view name) {
  const auto content = special.named.find(name);
  const auto id = content == special.named.end() ? std::nullopt : added.vocabulary().find(content->second);
  if (!id) {
    throw ConfigError("{} has no {}", (folder / "tokenizer_config.json").string(), name);
  }
  return *id;
}

}  // namespace flowshard::models
