#include "models/tokenizer/unicode.h"

#include <unicode/brkiter.h>
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>
#include <unicode/utext.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>

#include "core/error.h"

namespace flowshard::models::unicode {
namespace {

struct Range {
  char32_t first, last;
};

// Characters that the reference knows (Unicode 16) and ICU 72 (Unicode 15) does not.
constexpr Range kNewerLetters[] = {
    {0x1C89, 0x1C8A},   {0xA7CB, 0xA7CD},   {0xA7DA, 0xA7DC},   {0x105C0, 0x105F3}, {0x10D4A, 0x10D65},
    {0x10D6F, 0x10D85}, {0x10EC2, 0x10EC4}, {0x11380, 0x11389}, {0x1138B, 0x1138B}, {0x1138E, 0x1138E},
    {0x11390, 0x113B5}, {0x113B7, 0x113B7}, {0x113D1, 0x113D1}, {0x113D3, 0x113D3}, {0x11BC0, 0x11BE0},
    {0x13460, 0x143FA}, {0x16100, 0x1611D}, {0x16D40, 0x16D6C}, {0x18CFF, 0x18CFF}, {0x1E5D0, 0x1E5ED},
    {0x1E5F0, 0x1E5F0}, {0x2EBF0, 0x2EE5D}};
constexpr Range kNewerNumbers[] = {{0x10D40, 0x10D49}, {0x116D0, 0x116E3}, {0x11BF0, 0x11BF9},
                                   {0x16130, 0x16139}, {0x16D70, 0x16D79}, {0x1CCF0, 0x1CCF9},
                                   {0x1E5F1, 0x1E5FA}};
// Marks of Unicode 15.1 to 17, which belong to the grapheme cluster before them.
constexpr Range kNewerMarks[] = {
    {0x0897, 0x0897},   {0x1ACF, 0x1ADD},   {0x1AE0, 0x1AEB},   {0x10D69, 0x10D6D}, {0x10EFA, 0x10EFC},
    {0x113B8, 0x113C0}, {0x113C2, 0x113C2}, {0x113C5, 0x113C5}, {0x113C7, 0x113CA}, {0x113CC, 0x113D0},
    {0x113D2, 0x113D2}, {0x113E1, 0x113E2}, {0x11B60, 0x11B67}, {0x11F5A, 0x11F5A}, {0x1611E, 0x1612F},
    {0x1E5EE, 0x1E5EF}, {0x1E6E3, 0x1E6E3}, {0x1E6E6, 0x1E6E6}, {0x1E6EE, 0x1E6EF}, {0x1E6F5, 0x1E6F5}};

// Lower case of Unicode 16 and 17 letters: every code point of the range moves by `offset`.
struct LowerRange {
  char32_t first, last;
  int32_t offset;
};
constexpr LowerRange kNewerLower[] = {
    {0x1C89, 0x1C89, 1},      {0xA7CB, 0xA7CB, 0x264 - 0xA7CB},
    {0xA7CC, 0xA7CC, 1},      {0xA7CE, 0xA7CE, 1},
    {0xA7D2, 0xA7D2, 1},      {0xA7D4, 0xA7D4, 1},
    {0xA7DA, 0xA7DA, 1},      {0xA7DC, 0xA7DC, 0x19B - 0xA7DC},
    {0x10D50, 0x10D65, 0x20}, {0x16EA0, 0x16EB8, 27},
};

bool contains(std::span<const Range> ranges, char32_t c) {
  return std::ranges::any_of(ranges, [c](const Range& range) { return range.first <= c && c <= range.last; });
}

bool is_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

void check_icu(UErrorCode status) {
  check(U_SUCCESS(status), std::string("ICU failed: ") + u_errorName(status));
}

int32_t icu_length(std::string_view text) {
  if (text.size() > INT32_MAX) {
    throw ConfigError("a text of {} bytes is too long to tokenize: shorten it", text.size());
  }
  return static_cast<int32_t>(text.size());
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"  // inside ICU's macro
/// The code point at `position`, which moves behind it; negative, and behind the longest part of a code point
/// that could have been one, where the bytes are not UTF-8.
UChar32 next_or_negative(std::string_view bytes, size_t& position) {
  UChar32 c = 0;
  U8_NEXT(bytes.data(), position, bytes.size(), c);
  return c;
}
#pragma GCC diagnostic pop

void append(std::string& text, char32_t c) {
  char bytes[U8_MAX_LENGTH];
  int32_t length = 0;
  U8_APPEND_UNSAFE(bytes, length, c);
  text.append(bytes, static_cast<size_t>(length));
}

char32_t lower_case(char32_t c) {
  for (const auto& range : kNewerLower) {
    if (range.first <= c && c <= range.last) {
      return static_cast<char32_t>(static_cast<int32_t>(c) + range.offset);
    }
  }
  return static_cast<char32_t>(u_tolower(static_cast<UChar32>(c)));
}

// The reference normalizes as Unicode 9 does: it leaves later characters alone.
const icu::Normalizer2& composer() {
  static const auto instance = [] {
    UErrorCode status = U_ZERO_ERROR;
    static icu::UnicodeSet known(u"[:age=9.0:]", status);
    known.freeze();
    const auto* nfc = icu::Normalizer2::getNFCInstance(status);
    check_icu(status);
    return icu::FilteredNormalizer2(*nfc, known);
  }();
  return instance;
}

// A break iterator holds its text, so that each call needs one of its own; cloning is the cheap way.
std::unique_ptr<icu::BreakIterator> grapheme_iterator() {
  static const auto prototype = [] {
    UErrorCode status = U_ZERO_ERROR;
    std::unique_ptr<icu::BreakIterator> iterator(
        icu::BreakIterator::createCharacterInstance(icu::Locale::getRoot(), status));
    check_icu(status);
    return iterator;
  }();
  return std::unique_ptr<icu::BreakIterator>(prototype->clone());
}

// Whether the cluster that starts at `start` is a mark that belongs to the one before it.
bool joins_previous(std::string_view text, size_t previous_start, size_t start) {
  size_t position = start;
  if (!contains(kNewerMarks, next(text, position))) {
    return false;
  }
  const auto before = static_cast<UChar32>(next(text, previous_start));
  const auto kind = u_getIntPropertyValue(before, UCHAR_GRAPHEME_CLUSTER_BREAK);
  return kind != U_GCB_CONTROL && kind != U_GCB_CR && kind != U_GCB_LF;
}

}  // namespace

void check_utf8(std::string_view text) {
  size_t position = 0;
  while (position < text.size()) {
    const size_t start = position;
    if (next_or_negative(text, position) < 0) {
      throw ConfigError(
          "the text is not valid UTF-8: byte {:#04x} at position {}, counted from 0; encode it as UTF-8",
          static_cast<unsigned char>(text[start]), start);
    }
  }
}

std::string replace_invalid(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (size_t position = 0; position < bytes.size();) {
    const UChar32 c = next_or_negative(bytes, position);
    append(text, c < 0 ? U'\uFFFD' : static_cast<char32_t>(c));
  }
  return text;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string replaced;
  for (size_t found = text.find(from); found != std::string_view::npos; found = text.find(from)) {
    replaced += text.substr(0, found);
    replaced += to;
    text.remove_prefix(found + from.size());
  }
  return replaced += text;
}

char32_t next(std::string_view text, size_t& position) {
  UChar32 c = 0;
  U8_NEXT_UNSAFE(text.data(), position, c);
  return static_cast<char32_t>(c);
}

bool is_space(char32_t c) { return u_isUWhiteSpace(static_cast<UChar32>(c)); }

bool is_letter(char32_t c) {
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_L_MASK) != 0 || contains(kNewerLetters, c);
}

bool is_number(char32_t c) {
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_N_MASK) != 0 || contains(kNewerNumbers, c);
}

bool is_word(char32_t c) {
  const auto point = static_cast<UChar32>(c);
  return u_isUAlphabetic(point) ||
         (U_GET_GC_MASK(point) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0 ||
         u_hasBinaryProperty(point, UCHAR_JOIN_CONTROL) || contains(kNewerLetters, c) ||
         contains(kNewerNumbers, c);
}

std::string compose(std::string_view text) {
  if (is_ascii(text)) {
    return std::string(text);
  }
  std::string composed;
  icu::StringByteSink<std::string> sink(&composed, icu_length(text));
  UErrorCode status = U_ZERO_ERROR;
  composer().normalizeUTF8(0, icu::StringPiece(text.data(), icu_length(text)), sink, nullptr, status);
  check_icu(status);
  return composed;
}

std::string lower_case(std::string_view text) {
  std::string lower;
  lower.reserve(text.size());
  for (size_t position = 0; position < text.size();) {
    const char32_t c = next(text, position);
    if (c == 0x130) {  // the one letter whose lower case is two characters
      lower += "i\u0307";
    } else {
      append(lower, lower_case(c));
    }
  }
  return lower;
}

std::vector<size_t> grapheme_ends(std::string_view text) {
  UErrorCode status = U_ZERO_ERROR;
  UText source = UTEXT_INITIALIZER;
  utext_openUTF8(&source, text.data(), icu_length(text), &status);
  const std::unique_ptr<UText, decltype(&utext_close)> closer(&source, utext_close);
  const auto iterator = grapheme_iterator();
  iterator->setText(&source, status);
  check_icu(status);

  std::vector<size_t> ends;
  size_t previous_start = 0;
  size_t start = 0;
  for (int32_t end = iterator->next(); end != icu::BreakIterator::DONE; end = iterator->next()) {
    if (start > 0 && joins_previous(text, previous_start, start)) {
      ends.back() = static_cast<size_t>(end);
    } else {
      ends.push_back(static_cast<size_t>(end));
      previous_start = start;
    }
    start = static_cast<size_t>(end);
  }
  return ends;
}

}  // namespace flowshard::models::unicode
