// JSON from files that anybody may have written: what other parsers let pass, and what would exhaust the
// stack of those who use the value, is an error here. Thread-safe: no state.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace flowshard {

/// Throws ConfigError, which begins with `source`, for what is not UTF-8 JSON in the strict sense, for a key
/// that stands twice in one object, and for nesting deeper than any file of a model has.
nlohmann::json parse_json(std::string_view text, const std::string& source);

/// The same; the keys of an object keep the order of the text.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& source);

/// `text` in quotation marks, control characters escaped: for names from files in one-line messages.
std::string in_quotes(std::string_view text);

}  // namespace flowshard
