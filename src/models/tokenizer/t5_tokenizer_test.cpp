#include "models/tokenizer/t5_tokenizer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/temporary_folder.h"
#include "models/tokenizer/charsmap.h"

namespace flowshard::models {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string u32(uint32_t value) {
  std::string bytes(4, '\0');
  std::memcpy(bytes.data(), &value, 4);
  return bytes;
}

/// A double array with one entry: a unit holds label, offset to its children (shifted by 10) and a leaf bit.
std::string charsmap_of(const std::string& key, const std::string& replacement) {
  std::vector<uint32_t> units(2048, 0);
  uint32_t node = 0;
  uint32_t base = 256;  // children of the node lie at base xor label
  units[0] = base << 10;
  for (size_t i = 0; i < key.size(); ++i) {
    const auto label = static_cast<unsigned char>(key[i]);
    node = base ^ label;
    base += 256;
    const bool last = i + 1 == key.size();
    units[node] = (node ^ base) << 10 | (last ? 1U << 8 : 0) | label;
  }
  units[base] = 1U << 31;  // the value: place 0 of the replacements
  std::string bytes = u32(static_cast<uint32_t>(units.size() * 4));
  for (const uint32_t unit : units) {
    bytes += u32(unit);
  }
  return bytes + replacement + '\0';
}

/// A field of a protocol buffer that is shorter than 2^14 bytes.
std::string field(unsigned number, const std::string& bytes) {
  std::string out(1, static_cast<char>(number << 3 | 2));
  out += static_cast<char>(0x80 | (bytes.size() & 0x7F));
  out += static_cast<char>(bytes.size() >> 7);
  return out + bytes;
}

std::string piece(const std::string& text, float score, char type = 1) {
  std::string bytes(4, '\0');
  std::memcpy(bytes.data(), &score, 4);
  return field(1, field(1, text) + std::string("\x15") + bytes + std::string("\x18") + type);
}

struct T5TokenizerTest : testing::Test {
  T5TokenizerTest() { write("spiece.model", model); }

  void write(const std::string& name, const std::string& content) const {
    std::ofstream(folder / name, std::ios::binary) << content;
  }

  /// The ids before the first </s>.
  std::vector<int64_t> inner(const std::string& text) const {
    auto ids = T5Tokenizer(folder).encode(text, 50).ids;
    EXPECT_EQ(ids.size(), 50U);
    return {ids.begin(), std::find(ids.begin(), ids.end(), 1)};
  }

  std::string error() const {
    try {
      T5Tokenizer tokenizer(folder);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  }

  using Ids = std::vector<int64_t>;
  const TemporaryFolder temporary_folder;
  const fs::path folder = temporary_folder.path();
  // Ids:                            0                        1                        2
  const std::string model = piece("<pad>", 0, 3) + piece("</s>", 0, 3) + piece("<unk>", 0, 2) +
                            //  3                          4                          5
                            piece("\u2581", -2) + piece("a", -3) + piece("\u2581ab", -4) +
                            // 6                     7                    8                     9
                            piece("b", -3) + piece("aa", -5) + piece("fi", -3.5) + piece("\u2581a", -4.5) +
                            field(3, field(2, charsmap_of("\uFB01", "fi")));
  static constexpr int64_t kFirstExtraId = 10;  // that of <extra_id_99>
};

TEST_F(T5TokenizerTest, TakesThePiecesWithTheHighestSum) {
  EXPECT_EQ(inner("ab"), (Ids{5}));
  EXPECT_EQ(inner("ba"), (Ids{3, 6, 4}));
  EXPECT_EQ(inner("a"), (Ids{9}));
  EXPECT_EQ(inner("baab"), (Ids{3, 6, 7, 6}));
}

TEST_F(T5TokenizerTest, SpacesOnlySeparateWords) {
  for (const char* text : {"ab a", "  ab   a ", "ab\ta\n", "ab\u00A0\u3000a"}) {
    EXPECT_EQ(inner(text), (Ids{5, 9})) << text;
  }
  EXPECT_EQ(inner(" \n"), Ids{});
  EXPECT_EQ(inner("b\u2581ab"), (Ids{3, 6, 5}));  // a space mark in the text starts a piece
}

TEST_F(T5TokenizerTest, RunOfUnknownCharactersIsOneUnknownToken) {
  EXPECT_EQ(inner("{}"), (Ids{3, 2}));
  EXPECT_EQ(inner("ab{b}"), (Ids{5, 2, 6, 2}));
  EXPECT_EQ(inner(std::string("b\0b", 3)), (Ids{3, 6, 2, 6}));
  EXPECT_EQ(inner("\U0001F600\u200D\u0301"), (Ids{3, 2}));
}

TEST_F(T5TokenizerTest, ReplacesCharactersAsTheReferenceDoes) {
  EXPECT_EQ(inner("\uFB01"), (Ids{3, 8}));
  EXPECT_EQ(inner("\uFB01\u0301"), (Ids{3, 8}));           // the mark of a short cluster is lost
  EXPECT_EQ(inner("\uFB01\u0301\u0302"), (Ids{3, 8, 2}));  // that of a long one is not
}

TEST_F(T5TokenizerTest, TypedSpecialTokensAreTokens) {
  EXPECT_EQ(T5Tokenizer(folder).encode("ab </s>.ab<pad><unk>", 9).ids, (Ids{5, 1, 3, 2, 4, 6, 0, 2, 1}));
  EXPECT_EQ(inner("a <extra_id_0>b<extra_id_99>"), (Ids{9, kFirstExtraId + 99, 3, 6, kFirstExtraId}));
  EXPECT_EQ(inner("<extra_id_100>").front(), 3);
}

TEST_F(T5TokenizerTest, FlagsOfAnAddedTokenHold) {
  write("tokenizer_config.json", R"({"added_tokens_decoder": {
      "110": {"content": "ba", "single_word": true},
      "10": {"content": "<extra_id_99>", "lstrip": true, "rstrip": true},
      "111": {"content": "fib", "special": false}}})");
  // New tokens get the ids behind the last piece in the order of the keys, whatever the keys are.
  EXPECT_EQ(inner("a ba-ba"), (Ids{9, 110, 3, 2, 110}));
  EXPECT_EQ(inner("aba"), (Ids{5, 4}));
  EXPECT_EQ(inner("b <extra_id_99> b"), (Ids{3, 6, kFirstExtraId, 3, 6}));
  EXPECT_EQ(inner("a\uFB01b"), (Ids{9, 111}));  // looked for in normalized text
}

TEST_F(T5TokenizerTest, CutsKeepsTheEndAndReportsTheRest) {
  const T5Tokenizer tokenizer(folder);
  EXPECT_EQ(tokenizer.encode("ab a", 5).ids, (Ids{5, 9, 1, 0, 0}));
  const auto cut = tokenizer.encode("ab a ba", 2);
  EXPECT_EQ(cut.ids, (Ids{5, 1}));
  EXPECT_EQ(cut.truncated, "a ba");
  EXPECT_EQ(tokenizer.encode("ab", 2).truncated, "");
  EXPECT_THROW(tokenizer.encode("ab", 0), ConfigError);
  EXPECT_THROW(tokenizer.encode("ab\xFF", 5), ConfigError);
}

TEST_F(T5TokenizerTest, ReadsTokenizerJson) {
  fs::remove(folder / "spiece.model");
  const auto vocabulary =
      json::parse(R"([["<pad>", 0], ["</s>", 0], ["<unk>", 0], ["\u2581", -2.0], ["a", -3.0]])");
  // base64 of the 4-byte head and a trie of one unit that has no children.
  const json normalizer = {{"type", "Precompiled"}, {"precompiled_charsmap", "BAAAAAAAAAA="}};
  write("tokenizer.json", json{{"model", {{"vocab", vocabulary}}}, {"normalizer", normalizer}}.dump());
  EXPECT_EQ(inner("aa"), (Ids{3, 4, 4}));
}

TEST_F(T5TokenizerTest, BadFilesAreNamed) {
  const auto fewest = piece("<pad>", 0, 3) + piece("</s>", 0, 3) + piece("<unk>", 0, 2);
  for (size_t length = 0; length < fewest.size(); ++length) {
    write("spiece.model", fewest.substr(0, length));
    EXPECT_NE(error().find("spiece.model"), std::string::npos) << length;
  }
  write("spiece.model", fewest);
  EXPECT_EQ(error(), "no error");
  write("spiece.model", std::string(1000, '\xFF'));
  EXPECT_NE(error().find("spiece.model is cut short or is not a sentencepiece model"), std::string::npos)
      << error();
  // A score that is an integer is no score: as if it were absent.
  write("spiece.model", fewest + field(1, field(1, "a") + std::string("\x10\x03")));
  EXPECT_EQ(error(), "no error");
  fs::remove(folder / "spiece.model");
  EXPECT_NE(error().find("cannot read " + (folder / "spiece.model").string()), std::string::npos) << error();
  write("tokenizer.json", R"({"model": {"vocab": [["a"]]}})");
  EXPECT_NE(error().find("tokenizer.json"), std::string::npos) << error();
}

TEST_F(T5TokenizerTest, BadConfigurationsAreNamed) {
  for (const char* content : {R"({"extra_ids": -1})", R"({"extra_ids": 1e30})", R"({"extra_ids": "3"})",
                              R"({"extra_ids": 100001})", R"({"extra_ids": 18446744073709551615})"}) {
    write("tokenizer_config.json", content);
    EXPECT_NE(error().find("tokenizer_config.json: extra_ids is "), std::string::npos)
        << content << ": " << error();
  }
}

TEST(CharsmapTest, DamagedMapsAreRefused) {
  const auto whole = charsmap_of("\uFB01", "fi");
  EXPECT_EQ(Charsmap(whole, "m").normalize("a\uFB01"), "afi");
  EXPECT_EQ(Charsmap("", "m").normalize("a\uFB01"), "a\uFB01");
  EXPECT_THROW(Charsmap("abc", "m"), ConfigError);
  EXPECT_THROW(Charsmap(whole.substr(0, 4000), "m"), ConfigError);
  EXPECT_THROW(Charsmap(whole + '\xFF', "m"), ConfigError);
  // Units that point outside the trie or the replacements match nothing and replace by nothing.
  std::string wild = u32(8) + u32(0xFFFFFFFF) + u32(0xFFFFFFFF);
  EXPECT_EQ(Charsmap(wild, "m").normalize("a\uFB01"), "a\uFB01");
  // The value of the one entry is 1: the second byte of its replacement.
  std::string inside = charsmap_of("\uFB01", "\u00E9");
  inside.replace(inside.find(u32(1U << 31)), 4, u32(1U << 31 | 1));
  EXPECT_EQ(Charsmap(inside, "m").normalize("a\uFB01"), "a\uFB01");
}

}  // namespace
}  // namespace flowshard::models
