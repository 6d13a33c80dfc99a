#include "core/config_value.h"

#include <toml++/toml.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>

#include "core/error.h"

namespace flowshard {
namespace {

template <typename... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <typename... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;  // clang 16 cannot deduce them from an aggregate

ConfigValue array_value(const toml::array& array) {
  std::vector<std::string> strings;
  for (const toml::node& element : array) {
    const auto* text = element.as_string();
    if (text == nullptr) return UnsupportedValue{"a list that holds other things than strings"};
    strings.push_back(text->get());
  }
  return strings;
}

ConfigValue leaf_value(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::boolean:
      return node.as_boolean()->get();
    case toml::node_type::integer:
      return node.as_integer()->get();
    case toml::node_type::floating_point:
      return node.as_floating_point()->get();
    case toml::node_type::string:
      return node.as_string()->get();
    case toml::node_type::array:
      return array_value(*node.as_array());
    case toml::node_type::table:
      return node.as_table()->empty() ? ConfigValue(EmptyTable{}) : UnsupportedValue{"a table"};
    default:
      return UnsupportedValue{"a date or a time"};
  }
}

bool is_bare_key(std::string_view key) {
  const auto is_bare = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  return !key.empty() && std::all_of(key.begin(), key.end(), is_bare);
}

struct Leaf {
  uint32_t line;
  std::string key;
  ConfigValue value;
};

void collect(const toml::table& table, const std::string& prefix, std::vector<Leaf>& leaves) {
  for (const auto& [key, node] : table) {
    // A quoted "train.steps" is another key than train.steps and must not pass for it.
    const std::string part =
        is_bare_key(key.str()) ? std::string(key.str()) : to_toml(std::string(key.str()));
    const std::string name = prefix + part;
    const toml::table* inner = node.as_table();
    if (inner != nullptr && !inner->empty()) {
      collect(*inner, name + ".", leaves);
    } else {
      leaves.push_back({key.source().begin.line, name, leaf_value(node)});
    }
  }
}

/// The value of "x = text" if that is TOML with nothing after it.
std::optional<ConfigValue> parse_value(const std::string& text) {
  try {
    const toml::table table = toml::parse(std::string_view("x = " + text));
    if (table.size() != 1) return std::nullopt;
    return leaf_value(table.begin()->second);
  } catch (const toml::parse_error&) {
    return std::nullopt;
  }
}

std::string number_text(double value) {
  std::string text = fmt::format("{}", value);
  // Without a point or an exponent TOML would read an integer.
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string string_text(const std::string& value) {
  std::ostringstream text;
  text << toml::toml_formatter{toml::value<std::string>(value), toml::format_flags::none};
  return text.str();
}

/// For a message: what is quoted of the input may hold line breaks.
std::string one_line(std::string_view text) {
  std::string line(text);
  std::replace_if(
      line.begin(), line.end(), [](char c) { return c >= 0 && c < ' '; }, ' ');
  return line;
}

}  // namespace

std::vector<ConfigEntry> parse_toml(std::string_view text, const std::string& source) {
  std::vector<Leaf> leaves;
  try {
    collect(toml::parse(text), "", leaves);
  } catch (const toml::parse_error& error) {
    throw ConfigError("{}:{}: invalid TOML: {}", source, error.source().begin.line,
                      one_line(error.description()));
  }
  std::stable_sort(leaves.begin(), leaves.end(),
                   [](const Leaf& a, const Leaf& b) { return a.line < b.line; });
  std::vector<ConfigEntry> entries;
  for (Leaf& leaf : leaves) {
    entries.push_back({std::move(leaf.key), std::move(leaf.value), fmt::format("{}:{}", source, leaf.line)});
  }
  return entries;
}

std::string read_config_file(const std::filesystem::path& path) {
  constexpr size_t kMaxBytes = 1 << 20;
  std::error_code ignored;  // what cannot be examined cannot be opened either
  if (std::filesystem::is_directory(path, ignored)) {
    throw ConfigError("{} is a folder; name a configuration file in TOML", path.string());
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) throw ConfigError("cannot read the configuration {}: {}", path.string(), std::strerror(errno));
  std::string text(kMaxBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) throw ConfigError("cannot read the configuration {}: read error", path.string());
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMaxBytes) {
    throw ConfigError("{} is larger than 1 MiB: that is no configuration file", path.string());
  }
  return text;
}

ConfigEntry parse_assignment(const std::string& assignment, const std::string& where) {
  const size_t equals = assignment.find('=');
  if (equals == 0 || equals == std::string::npos) {
    throw ConfigError("{} {}: write section.key=value", where, one_line(assignment));
  }
  const std::string key = assignment.substr(0, equals);
  const std::string text = assignment.substr(equals + 1);
  if (const auto value = parse_value(text)) return {key, *value, where, text};
  const bool looks_like_toml = text.find_first_of("\"'[{") == 0;
  const std::optional<ConfigValue> bare_word = parse_value(string_text(text));
  // Invalid UTF-8 does not come back as it was.
  const bool is_text = bare_word && std::get<std::string>(*bare_word) == text;
  if (text.empty() || looks_like_toml || !is_text) {
    throw ConfigError("{} {}: the value is not valid TOML", where, one_line(assignment));
  }
  return {key, text, where, text};
}

std::string to_toml(const ConfigValue& value) {
  return std::visit(
      Overloaded{[](bool b) -> std::string { return b ? "true" : "false"; },
                 [](int64_t i) { return fmt::format("{}", i); }, [](double d) { return number_text(d); },
                 [](const std::string& s) { return string_text(s); },
                 [](const std::vector<std::string>& list) {
                   std::string text = "[";
                   for (const std::string& element : list) {
                     text += (text.size() > 1 ? ", " : "") + string_text(element);
                   }
                   return text + "]";
                 },
                 [](const EmptyTable&) -> std::string { return "{}"; },
                 [](const UnsupportedValue& u) { return u.kind; }},
      value);
}

std::string describe(const ConfigValue& value) {
  constexpr size_t kMaxBytes = 160;
  std::string text = to_toml(value);
  if (text.size() > kMaxBytes) {
    size_t end = kMaxBytes;
    while ((text[end] & 0xC0) == 0x80) --end;  // not inside a UTF-8 sequence
    text = text.substr(0, end) + "...";
  }
  return std::visit(Overloaded{[&](bool) { return text; }, [&](int64_t) { return "the integer " + text; },
                               [&](double) { return "the number " + text; },
                               [&](const std::string&) { return "the string " + text; },
                               [&](const std::vector<std::string>&) { return "the list " + text; },
                               [&](const EmptyTable&) { return "the empty table " + text; },
                               [&](const UnsupportedValue&) { return text; }},
                    value);
}

}  // namespace flowshard
