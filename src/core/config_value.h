// The values that a configuration key can have, and their TOML form. The TOML library stays behind this
// header. Thread-safe: no state.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace flowshard {

/// A section without keys.
struct EmptyTable {};

/// A TOML value of a kind that no key takes: a date, an array of numbers.
struct UnsupportedValue {
  std::string kind;  // "a date or a time"
};

using ConfigValue =
    std::variant<bool, int64_t, double, std::string, std::vector<std::string>, EmptyTable, UnsupportedValue>;

/// One assignment, wherever it comes from.
struct ConfigEntry {
  std::string key;  // "train.steps"; a part that TOML must quote keeps its quotes
  ConfigValue value;
  std::string where;          // "run.toml:12" or "--set", for messages
  std::string raw_text = {};  // what the command line says for the value; empty for a file
};

/// The assignments of a TOML document, by line. Throws ConfigError "source:line: ..." if it is
/// malformed (a key given twice, invalid UTF-8 and deep nesting included).
std::vector<ConfigEntry> parse_toml(std::string_view text, const std::string& source);

/// The text of a configuration file. Throws ConfigError if it cannot be read or is no text of sane size.
std::string read_config_file(const std::filesystem::path& path);

/// Parses "section.key=value" of the command line. The value is TOML; anything that is not TOML and does not
/// begin like a quoted string, an array or a table is a string as it stands. `where` is the option's name.
ConfigEntry parse_assignment(const std::string& assignment, const std::string& where);

/// The value as TOML on one line; numbers read back to the same bits.
std::string to_toml(const ConfigValue& value);

/// "the integer 5", "the string \"x\"": the value in a message.
std::string describe(const ConfigValue& value);

}  // namespace flowshard
