// What the tokenizers need to know about Unicode, over ICU. The answers follow the Unicode versions of the
// reference (docs/numerics.md, "Tokenizers") whatever ICU is installed, so that a prompt has the same ids on
// every machine. Texts are UTF-8; all functions but check_utf8 and replace_invalid take them as valid.
// Thread-safe.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace flowshard::models::unicode {

/// Throws ConfigError with the byte position if `text` is not valid UTF-8.
void check_utf8(std::string_view text);

/// `bytes` with U+FFFD for whatever is not UTF-8.
std::string replace_invalid(std::string_view bytes);

std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

/// The code point at `position`, which moves behind it.
char32_t next(std::string_view text, size_t& position);

bool is_space(char32_t c);   // White_Space
bool is_letter(char32_t c);  // \p{L}
bool is_number(char32_t c);  // \p{N}
bool is_word(char32_t c);    // \w

/// Normalization form C.
std::string compose(std::string_view text);

/// Every character in lower case by itself: a final sigma is no exception.
std::string lower_case(std::string_view text);

/// The byte positions where the extended grapheme clusters of `text` end.
std::vector<size_t> grapheme_ends(std::string_view text);

}  // namespace flowshard::models::unicode
