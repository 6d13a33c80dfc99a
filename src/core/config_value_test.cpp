#include "core/config_value.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "core/error.h"
#include "core/temporary_folder.h"

namespace flowshard {
namespace {

template <typename Function>
std::string config_error(Function function) {
  try {
    function();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no ConfigError";
}

TEST(ParseToml, EveryKindWithItsLine) {
  const auto entries = parse_toml(
      "[b]\nflag = true\nwhole = -3\n\n[a]\nreal = 2.5\ntext = \"x\"\nlist = [\"p\", 'q']\nday = 2024-01-02\n"
      "numbers = [1, 2]\n[empty]\n",
      "run.toml");
  ASSERT_EQ(entries.size(), 8u);
  EXPECT_EQ(entries[0].key, "b.flag");
  EXPECT_EQ(entries[0].where, "run.toml:2");
  EXPECT_TRUE(std::get<bool>(entries[0].value));
  EXPECT_EQ(std::get<int64_t>(entries[1].value), -3);
  EXPECT_EQ(entries[2].key, "a.real");
  EXPECT_EQ(std::get<double>(entries[2].value), 2.5);
  EXPECT_EQ(std::get<std::string>(entries[3].value), "x");
  EXPECT_EQ(std::get<std::vector<std::string>>(entries[4].value), (std::vector<std::string>{"p", "q"}));
  EXPECT_EQ(std::get<UnsupportedValue>(entries[5].value).kind, "a date or a time");
  EXPECT_EQ(std::get<UnsupportedValue>(entries[6].value).kind, "a list that holds other things than strings");
  EXPECT_EQ(entries[7].key, "empty");
  EXPECT_TRUE(std::holds_alternative<EmptyTable>(entries[7].value));
}

TEST(ParseToml, AQuotedKeyIsNotADottedOne) {
  EXPECT_EQ(parse_toml("\"train.steps\" = 1", "f").at(0).key, "\"train.steps\"");
}

TEST(ParseToml, MalformedDocumentsNameTheLine) {
  const auto error = [](const std::string& text) {
    return config_error([&] { parse_toml(text, "run.toml"); });
  };
  EXPECT_EQ(error("a = 1\nb = \n").substr(0, 25), "run.toml:2: invalid TOML:");
  EXPECT_EQ(error("a = 1\na = 2\n").substr(0, 25), "run.toml:2: invalid TOML:");
  EXPECT_EQ(error("a = 1\n\nb = \"\xff\"").substr(0, 25), "run.toml:3: invalid TOML:");
  EXPECT_EQ(error("a = " + std::string(100'000, '[')).substr(0, 25), "run.toml:1: invalid TOML:");
}

TEST(ParseToml, TheMessageIsOneLineWhateverItQuotes) {
  EXPECT_EQ(config_error([] { parse_toml("a = tr\nb = 1", "f"); }).find('\n'), std::string::npos);
  EXPECT_EQ(config_error([] { parse_assignment("a\nb", "--set"); }).find('\n'), std::string::npos);
}

TEST(ParseAssignment, TomlOrBareWord) {
  const auto value = [](const std::string& text) { return parse_assignment("s.k=" + text, "--set").value; };
  EXPECT_EQ(std::get<int64_t>(value("12")), 12);
  EXPECT_EQ(std::get<double>(value("1e-4")), 1e-4);
  EXPECT_TRUE(std::get<bool>(value("true")));
  EXPECT_EQ(std::get<std::string>(value("full_shard")), "full_shard");
  EXPECT_EQ(std::get<std::string>(value("runs/a=b#c")), "runs/a=b#c");
  EXPECT_EQ(std::get<std::string>(value("\"quoted\"")), "quoted");
  EXPECT_EQ(std::get<std::vector<std::string>>(value("['a']")), std::vector<std::string>{"a"});
}

TEST(ParseAssignment, Malformed) {
  for (const std::string bad : {"train.steps", "=5", "s.k=", "s.k=[1", "s.k=\"x", "s.k={a", "s.k=\xff\xfe"}) {
    EXPECT_THROW(parse_assignment(bad, "--set"), ConfigError) << bad;
  }
  // One assignment cannot smuggle in another key.
  EXPECT_THROW(parse_assignment("s.k=[1]\ny=[2]", "--set"), ConfigError);
}

TEST(ToToml, NumbersReadBackToTheSameBits) {
  std::mt19937_64 random(7);
  std::vector<double> numbers = {0.0, -0.0, 1.0, 1e-5, 0.1, 1e20, 5e-324, 1.7976931348623157e308};
  while (numbers.size() < 20'000) {
    const double number = std::bit_cast<double>(random());
    if (std::isfinite(number)) numbers.push_back(number);
  }
  for (const double number : numbers) {
    const auto entries = parse_toml("x = " + to_toml(number), "f");
    const double* back = std::get_if<double>(&entries.at(0).value);
    ASSERT_NE(back, nullptr) << number;
    ASSERT_EQ(std::bit_cast<uint64_t>(*back), std::bit_cast<uint64_t>(number)) << number;
  }
}

TEST(ToToml, StringsReadBack) {
  for (const std::string text : {"plain", "quote \" and '", "back\\slash", "line\nbreak\ttab", "\x01\x7f",
                                 "\xc3\xa9", "'''", "\"\"\"", "true", "12"}) {
    const auto entries = parse_toml("x = " + to_toml(ConfigValue(text)), "f");
    EXPECT_EQ(std::get<std::string>(entries.at(0).value), text);
    const std::vector<std::string> list = {text, text};
    EXPECT_EQ(std::get<std::vector<std::string>>(parse_toml("x = " + to_toml(list), "f").at(0).value), list);
  }
}

TEST(ReadConfigFile, SaysWhatIsWrong) {
  const TemporaryFolder folder;
  EXPECT_NE(config_error([&] { read_config_file(folder.path()); }).find("is a folder"), std::string::npos);
  EXPECT_NE(config_error([&] { read_config_file(folder / "absent.toml"); }).find("No such file"),
            std::string::npos);
  std::ofstream(folder / "big.toml") << std::string((1 << 20) + 1, '#');
  EXPECT_NE(config_error([&] { read_config_file(folder / "big.toml"); }).find("larger than 1 MiB"),
            std::string::npos);
  std::ofstream(folder / "good.toml") << "a = 1\n";
  EXPECT_EQ(read_config_file(folder / "good.toml"), "a = 1\n");
}

}  // namespace
}  // namespace flowshard
