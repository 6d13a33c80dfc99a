#include "models/tokenizer/clip_tokenizer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/error.h"
#include "core/temporary_folder.h"

namespace flowshard::models {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// A vocabulary of whole bytes and a few merges. Ids: i or 256 + i for character i, without or with </w>.
struct ClipTokenizerTest : testing::Test {
  ClipTokenizerTest() {
    for (char32_t c = 'a'; c <= 'z'; ++c) {
      vocabulary[std::string(1, static_cast<char>(c))] = c;
      vocabulary[std::string(1, static_cast<char>(c)) + "</w>"] = 256 + c;
    }
    for (const char* other :
         {"!", "'", "<", "|", ">", "1", "\u00C3", "\u00A9", "\u0100"}) {  // U+0100: the NUL byte
      vocabulary[other] = 600 + vocabulary.size();
      vocabulary[std::string(other) + "</w>"] = 600 + vocabulary.size();
    }
    for (const char* merged : {"ab", "aba", "ba</w>", "'s</w>", "<|startoftext|>", "<|endoftext|>"}) {
      vocabulary[merged] = 700 + vocabulary.size();
    }
    write("vocab.json", vocabulary.dump());
    write("merges.txt", "#version: 0.2\na b\nb a</w>\n' s</w>\nab a\n");
  }

  void write(const std::string& name, const std::string& content) const {
    std::ofstream(folder / name) << content;
  }
  int64_t id(const std::string& piece) const { return vocabulary.at(piece).get<int64_t>(); }

  /// The ids between the start and the first end token.
  std::vector<int64_t> inner(const std::string& text) const {
    auto ids = ClipTokenizer(folder).encode(text, 100).ids;
    EXPECT_EQ(ids.front(), id("<|startoftext|>"));
    EXPECT_EQ(ids.size(), 100U);
    return {ids.begin() + 1, std::find(ids.begin(), ids.end(), id("<|endoftext|>"))};
  }

  std::vector<int64_t> ids_of(const std::vector<std::string>& pieces) const {
    std::vector<int64_t> ids;
    std::transform(pieces.begin(), pieces.end(), std::back_inserter(ids),
                   [this](const auto& piece) { return id(piece); });
    return ids;
  }

  std::string error() const {
    try {
      ClipTokenizer tokenizer(folder);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  }

  const TemporaryFolder temporary_folder;
  const fs::path folder = temporary_folder.path();
  json vocabulary = json::object();
};

TEST_F(ClipTokenizerTest, MergesInTheOrderOfTheMerges) {
  EXPECT_EQ(inner("ab"), ids_of({"a", "b</w>"}));
  EXPECT_EQ(inner("abx"), ids_of({"ab", "x</w>"}));
  // "a b" comes before "b a</w>", and it leaves an "a</w>" that "ab a" does not match.
  EXPECT_EQ(inner("aba"), ids_of({"ab", "a</w>"}));
  EXPECT_EQ(inner("abax"), ids_of({"aba", "x</w>"}));
  EXPECT_EQ(inner("cba"), ids_of({"c", "ba</w>"}));
}

TEST_F(ClipTokenizerTest, CutsWordsDigitsAndContractions) {
  EXPECT_EQ(inner("a11b!!"), ids_of({"a</w>", "1</w>", "1</w>", "b</w>", "!", "!</w>"}));
  EXPECT_EQ(inner("A'S"), ids_of({"a</w>", "'s</w>"}));
  EXPECT_EQ(inner(" a \t\n\u00A0 b "), ids_of({"a</w>", "b</w>"}));
  EXPECT_EQ(inner(""), ids_of({}));
}

TEST_F(ClipTokenizerTest, WritesBytesAsCharacters) {
  EXPECT_EQ(inner("\u00E9"), ids_of({"\u00C3", "\u00A9</w>"}));
  EXPECT_EQ(inner("e\u0301"), ids_of({"\u00C3", "\u00A9</w>"}));
  EXPECT_EQ(inner(std::string("a\0b", 3)), ids_of({"a</w>", "\u0100</w>", "b</w>"}));
}

TEST_F(ClipTokenizerTest, ByteOutsideTheVocabularyIsTheUnknownToken) {
  const auto ids = ClipTokenizer(folder).encode("a?", 5).ids;
  EXPECT_EQ(ids, ids_of({"<|startoftext|>", "a</w>", "<|endoftext|>", "<|endoftext|>", "<|endoftext|>"}));
}

TEST_F(ClipTokenizerTest, TypedMarkerIsTheTokenOnlyAsWritten) {
  EXPECT_EQ(inner("a<|startoftext|>b"), ids_of({"a</w>", "<|startoftext|>", "b</w>"}));
  EXPECT_EQ(inner("<|STARTOFTEXT|>!"), ids_of({"<", "|</w>", "s", "t", "a", "r", "t", "o", "f", "t", "e", "x",
                                               "t</w>", "|", "></w>", "!</w>"}));
}

TEST_F(ClipTokenizerTest, CutsKeepsTheEndAndReportsTheRest) {
  const ClipTokenizer tokenizer(folder);
  const auto fits = tokenizer.encode("a b c", 5);
  EXPECT_EQ(fits.truncated, "");
  EXPECT_EQ(fits.ids, ids_of({"<|startoftext|>", "a</w>", "b</w>", "c</w>", "<|endoftext|>"}));
  const auto cut = tokenizer.encode("a b cd \u00E9!", 4);
  EXPECT_EQ(cut.truncated, "cd \u00E9 !");
  EXPECT_EQ(cut.ids, ids_of({"<|startoftext|>", "a</w>", "b</w>", "<|endoftext|>"}));
  EXPECT_EQ(tokenizer.encode("a", 2).truncated, "a");
  EXPECT_THROW(tokenizer.encode("a", 1), ConfigError);
}

TEST_F(ClipTokenizerTest, PadsWithThePadTokenWhichIsThenATokenInTheTextToo) {
  write("tokenizer_config.json", R"({"pad_token": "!"})");
  const auto ids = ClipTokenizer(folder).encode("a!b", 7).ids;
  EXPECT_EQ(ids, ids_of({"<|startoftext|>", "a</w>", "!", "b</w>", "<|endoftext|>", "!", "!"}));
}

TEST_F(ClipTokenizerTest, NewTokenGetsTheNextId) {
  write(
      "tokenizer_config.json",
      R"({"added_tokens_decoder": {"5": {"content": "<Sks>", "lstrip": true, "normalized": true, "special": false}}})");
  EXPECT_EQ(inner("a <sKS>b"),
            (std::vector<int64_t>{id("a</w>"), static_cast<int64_t>(vocabulary.size()), id("b</w>")}));
}

TEST_F(ClipTokenizerTest, ReadsTokenizerJsonWithMergesInBothForms) {
  const auto expected = inner("abax cba");
  for (const auto& merges : {json::parse(R"(["a b", "b a</w>", "ab a"])"),
                             json::parse(R"([["a", "b"], ["b", "a</w>"], ["ab", "a"]])")}) {
    fs::remove(folder / "vocab.json");
    write(
        "tokenizer.json",
        json{{"added_tokens", json::array()}, {"model", {{"vocab", vocabulary}, {"merges", merges}}}}.dump());
    EXPECT_EQ(inner("abax cba"), expected);
  }
}

TEST_F(ClipTokenizerTest, BadFilesAreNamed) {
  write("merges.txt", "#version: 0.2\na b\nx\n");
  EXPECT_NE(error().find("merges.txt: line 3 is not two pieces"), std::string::npos) << error();
  write("merges.txt", "a q9\n");
  EXPECT_NE(error().find("the vocabulary lacks \"q9\""), std::string::npos) << error();
  fs::remove(folder / "merges.txt");
  EXPECT_NE(error().find("cannot read " + (folder / "merges.txt").string()), std::string::npos) << error();
  for (const char* content : {"", "{\"a\": ", "[]x", "{\"a\": \"b\"}", "{\"a\": -1}", "{\"\xFF\": 1}"}) {
    write("vocab.json", content);
    EXPECT_NE(error().find("vocab.json"), std::string::npos) << content << ": " << error();
  }
}

TEST_F(ClipTokenizerTest, BadConfigurationsAreNamed) {
  for (const char* content :
       {R"({"pad_token": null})", R"({"padding_side": "left"})", R"({"pad_token": 5})", "[]",
        R"({"added_tokens_decoder": {"x": "a"}})", R"({"added_tokens_decoder": {"99999999999": "a"}})",
        R"({"added_tokens_decoder": {"-1": "a"}})", R"({"added_tokens_decoder": {"1 ": "a"}})",
        R"({"split_special_tokens": true})"}) {
    write("tokenizer_config.json", content);
    EXPECT_NE(error().find("tokenizer_config.json"), std::string::npos) << content << ": " << error();
  }
}

TEST_F(ClipTokenizerTest, IdsThatAreNoWholeNumbersAreNamed) {
  for (const char* id :
       {"1.5", "1e30", "-1", "18446744073709551615", "18446744073709551616", "\"1\"", "null"}) {
    for (const auto& [name, content] :
         {std::pair("added_tokens.json", R"({"new": %})"),
          std::pair("tokenizer.json", R"({"added_tokens": [{"content": "new", "id": %}]})"),
          std::pair("vocab.json", R"({"new": %})")}) {
      write(name, std::string(content).replace(std::string(content).find('%'), 1, id));
      EXPECT_NE(error().find(name), std::string::npos) << name << " with " << id << ": " << error();
      name == std::string("vocab.json") ? write(name, vocabulary.dump()) : void(fs::remove(folder / name));
    }
  }
}

TEST_F(ClipTokenizerTest, DeepNestingIsNamed) {
  const std::string deep = R"({"pad_token": )" + std::string(200'000, '[') + std::string(200'000, ']') + "}";
  for (const char* name :
       {"tokenizer_config.json", "added_tokens.json", "special_tokens_map.json", "tokenizer.json"}) {
    write(name, deep);
    EXPECT_EQ(error(), (folder / name).string() + ": its JSON is nested too deeply");
    fs::remove(folder / name);
  }
}

TEST_F(ClipTokenizerTest, InvalidUtf8IsRefused) {
  EXPECT_THROW(ClipTokenizer(folder).encode("a\xFF"), ConfigError);
}

TEST_F(ClipTokenizerTest, LongWordsAreFast) {
  const ClipTokenizer tokenizer(folder);
  EXPECT_EQ(tokenizer.encode(std::string(300'000, 'a'), 10).ids.size(), 10U);
}

TEST_F(ClipTokenizerTest, ThreadsShareOne) {
  const ClipTokenizer tokenizer(folder);
  const auto expected = tokenizer.encode("abax \u00E9e\u0301").ids;
  std::vector<std::vector<int64_t>> found(4);
  {
    std::vector<std::jthread> threads;
    for (auto& ids : found) {
      threads.emplace_back([&] { ids = tokenizer.encode("abax \u00E9e\u0301").ids; });
    }
  }
  for (const auto& ids : found) {
    EXPECT_EQ(ids, expected);
  }
}

}  // namespace
}  // namespace flowshard::models
