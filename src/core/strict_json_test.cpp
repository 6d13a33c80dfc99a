#include "core/strict_json.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace flowshard {
namespace {

std::string error_of(std::string_view text) {
  std::string message = "no error";
  try {
    parse_json(text, "a.json");
  } catch (const ConfigError& error) {
    message = error.what();
  }
  try {
    parse_ordered_json(text, "a.json");
    EXPECT_EQ(message, "no error");
  } catch (const ConfigError& error) {
    EXPECT_EQ(message, error.what());
  }
  return message;
}

std::string nested(size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

TEST(StrictJson, DeepNestingIsRefusedBeforeAnybodyCopiesIt) {
  EXPECT_EQ(error_of(nested(32)), "no error");
  for (const size_t depth : {34, 1000, 1'000'000}) {
    EXPECT_EQ(error_of(nested(depth)), "a.json: its JSON is nested too deeply") << depth;
    EXPECT_EQ(error_of(R"({"a":)" + nested(depth) + "}"), "a.json: its JSON is nested too deeply") << depth;
  }
}

TEST(StrictJson, WhatOtherParsersLetPassIsRefused) {
  using namespace std::string_view_literals;
  EXPECT_EQ(error_of(R"({"a":1,"b":{"a":2}})"), "no error");
  EXPECT_EQ(error_of(R"({"a":1,"a":2})"), "a.json: the key \"a\" stands twice");
  EXPECT_EQ(error_of("{\"a\\n\":1,\"a\\n\":2}"), "a.json: the key \"a\\n\" stands twice");
  EXPECT_EQ(error_of("{}\0 garbage"sv), "a.json: its JSON is damaged at byte 2 of 11");
  for (const std::string_view text : {""sv, "{"sv, "{} {}"sv, "[1,]"sv, "{'a':1}"sv, "[NaN]"sv, "[01]"sv,
                                      "// a comment\n{}"sv, "[\"\xff\"]"sv, "[\"\xed\xa0\x80\"]"sv}) {
    EXPECT_NE(error_of(text).find("its JSON is damaged at byte"), std::string::npos) << text;
  }
  EXPECT_EQ(error_of("[1e999]"), "a.json: its JSON holds a number that is too large");
}

TEST(StrictJson, OrderedKeysStayInOrder) {
  std::string keys;
  const auto object = parse_ordered_json(R"({"z":1,"a":2,"m":3})", "");
  for (const auto& [key, value] : object.items()) keys += key;
  EXPECT_EQ(keys, "zam");
}

TEST(StrictJson, QuotedNamesStayOnOneLine) {
  EXPECT_EQ(in_quotes("a\n\"b\"\x1b[2J"), R"("a\n\"b\"\u001b[2J")");
  EXPECT_EQ(in_quotes("\xff"), "\"\uFFFD\"");
}

}  // namespace
}  // namespace flowshard
