#include "models/tokenizer/unicode.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace flowshard::models::unicode {
namespace {

struct InvalidText {
  std::string bytes;
  std::string complaint;
};

class InvalidUtf8 : public testing::TestWithParam<InvalidText> {};

TEST_P(InvalidUtf8, IsRefusedWithThePositionOfTheByte) {
  try {
    check_utf8(GetParam().bytes);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find(GetParam().complaint), std::string::npos) << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Texts, InvalidUtf8,
    testing::Values(InvalidText{"\xFF", "byte 0xff at position 0,"},              // never a byte
                    InvalidText{"cat \xE6\xAD", "byte 0xe6 at position 4,"},      // cut short
                    InvalidText{"cat \xE6 dog", "byte 0xe6 at position 4,"},      // cut in the middle
                    InvalidText{"ab\xC0\xAF", "byte 0xc0 at position 2,"},        // overlong '/'
                    InvalidText{"\xE0\x80\xAF", "byte 0xe0 at position 0,"},      // overlong
                    InvalidText{"x\xED\xA0\x80y", "byte 0xed at position 1,"},    // high surrogate
                    InvalidText{"\xED\xBF\xBF", "byte 0xed at position 0,"},      // low surrogate
                    InvalidText{"\xF4\x90\x80\x80", "byte 0xf4 at position 0,"},  // above U+10FFFF
                    InvalidText{"\xC3\xA9\x80", "byte 0x80 at position 2,"}));    // lone tail

TEST(Utf8, ValidTextsPass) {
  check_utf8("");
  check_utf8(std::string("\0a\0", 3));
  check_utf8("\u00E9\u20AC\U0001F600\uFFFF\U0010FFFF");
}

TEST(Utf8, InvalidPartsBecomeReplacementCharacters) {
  EXPECT_EQ(replace_invalid("a\xFF\xE6\xAD\u00E9"), "a\uFFFD\uFFFD\u00E9");
}

TEST(Compose, FollowsUnicode9) {
  EXPECT_EQ(compose("re\u0301sume\u0301"), "r\u00E9sum\u00E9");
  EXPECT_EQ(compose("q\u0307\u0323"), "q\u0323\u0307");
  EXPECT_EQ(compose("\u212B\uAC00\u11A8"), "\u00C5\uAC01");
  // U+10F46 came with Unicode 11: the reference does not sort it before U+0301.
  EXPECT_EQ(compose("x\u0301\U00010F46"), "x\u0301\U00010F46");
}

TEST(LowerCase, TakesEachCharacterByItself) {
  EXPECT_EQ(lower_case("AbC \u00C9\u0416"), "abc \u00E9\u0436");
  EXPECT_EQ(lower_case("\u0130"), "i\u0307");                     // Turkish dotted I
  EXPECT_EQ(lower_case("\u03A3\u03A3"), "\u03C3\u03C3");          // no final sigma
  EXPECT_EQ(lower_case("\u1E9E\u00DF"), "\u00DF\u00DF");          // capital sharp s
  EXPECT_EQ(lower_case("\uA7DC\U00010D50"), "\u019B\U00010D70");  // Unicode 16
}

TEST(Classes, KnowUnicode16) {
  EXPECT_TRUE(is_letter(U'\u00E9') && is_letter(U'\u732B') && is_letter(U'\U00010D4A'));
  EXPECT_FALSE(is_letter(U'\u0301') || is_letter(U'1'));
  EXPECT_TRUE(is_number(U'\u0664') && is_number(U'\u00BD') && is_number(U'\U00010D40'));
  EXPECT_TRUE(is_space(U'\u00A0') && is_space(U'\u3000') && is_space(U'\u0085'));
  EXPECT_FALSE(is_space(U'\u200B') || is_space(U'\u180E') || is_space(U'\u001C'));
  EXPECT_TRUE(is_word(U'_') && is_word(U'\u0301') && is_word(U'\u200D'));
  EXPECT_FALSE(is_word(U'-') || is_word(U'\u00BD'));
}

TEST(Graphemes, KeepMarksWithTheirBase) {
  EXPECT_EQ(grapheme_ends(""), std::vector<size_t>{});
  EXPECT_EQ(grapheme_ends("ae\u0301\r\nb"), (std::vector<size_t>{1, 4, 6, 7}));
  EXPECT_EQ(grapheme_ends("x\U00011B65\u0301y"), (std::vector<size_t>{7, 8}));  // a mark of Unicode 17
  EXPECT_EQ(grapheme_ends("\n\u0897"), (std::vector<size_t>{1, 4}));            // nothing joins a line end
}

}  // namespace
}  // namespace flowshard::models::unicode
