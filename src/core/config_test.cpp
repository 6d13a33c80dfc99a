#include "core/config.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace flowshard {
namespace {

enum class Colour { kRed, kBlue };

struct Sample {
  int64_t steps = 0;
  int64_t height = 64;
  double rate = 0.1;
  bool cache = false;
  std::string folder = "out";
  std::vector<std::string> shards;
  Colour colour = Colour::kBlue;
};

class ConfigSchemaTest : public testing::Test {
 protected:
  ConfigSchemaTest() {
    schema_.add("train.steps", &sample_.steps, "optimizer steps", {.min = 1, .max = 1000}).required();
    schema_.add("train.rate", &sample_.rate, "learning rate", {.min = 0, .max = 1, .max_excluded = true});
    schema_.add("data.height", &sample_.height, "pixels", {.min = 16, .multiple_of = 16});
    schema_.add("data.cache", &sample_.cache, "keep latents");
    schema_.add("data.shards", &sample_.shards, "tar files").required();
    schema_.add("run.folder", &sample_.folder, "where to write");
    schema_.add("run.colour", &sample_.colour, "paint", {{"red", Colour::kRed}, {"blue", Colour::kBlue}});
    schema_.add_rule([this] {
      return sample_.height > sample_.steps * 100 ? std::string("data.height is too large for train.steps")
                                                  : "";
    });
  }

  void load(const std::string& text, const std::vector<std::string>& assignments = {}) {
    std::vector<ConfigEntry> entries = parse_toml(text, "run.toml");
    for (const auto& assignment : assignments) entries.push_back(parse_assignment(assignment, "--set"));
    schema_.assign(entries, "run.toml");
  }

  std::string error_of(const std::string& text, const std::vector<std::string>& assignments = {}) {
    try {
      load(text, assignments);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  }

  const std::string needed_ = "[data]\nshards = ['a']\n[train]\nsteps = 5\n";  // the next line is line 5
  Sample sample_;
  ConfigSchema schema_{"see the manual"};
};

TEST_F(ConfigSchemaTest, AListThatNeedNotBeGivenMayBeEmpty) {
  std::vector<std::string> extra = {"b"};
  schema_.add("data.extra", &extra, "more tar files");
  load(needed_, {"data.extra=[]"});
  EXPECT_TRUE(extra.empty());
  EXPECT_NE(error_of(needed_, {"data.extra=['']"}), "no error");
}

TEST_F(ConfigSchemaTest, FillsTheFields) {
  load(needed_ + "rate = 0.25\n[run]\nfolder = \"x\"\ncolour = \"red\"\n",
       {"data.height=32", "data.cache=true"});
  EXPECT_EQ(sample_.steps, 5);
  EXPECT_EQ(sample_.rate, 0.25);
  EXPECT_EQ(sample_.height, 32);
  EXPECT_TRUE(sample_.cache);
  EXPECT_EQ(sample_.folder, "x");
  EXPECT_EQ(sample_.shards, std::vector<std::string>{"a"});
  EXPECT_EQ(sample_.colour, Colour::kRed);
}

TEST_F(ConfigSchemaTest, DefaultsStay) {
  load(needed_);
  EXPECT_EQ(sample_.rate, 0.1);
  EXPECT_EQ(sample_.colour, Colour::kBlue);
}

TEST_F(ConfigSchemaTest, TheLastAssignmentCounts) {
  load(needed_ + "rate = 'wrong'", {"train.rate=0.5", "train.rate=0.75"});
  EXPECT_EQ(sample_.rate, 0.75);
}

TEST_F(ConfigSchemaTest, AnIntegerIsANumberButNotTheReverse) {
  load(needed_ + "rate = 0");
  EXPECT_EQ(sample_.rate, 0.0);
  EXPECT_EQ(error_of(needed_, {"train.steps=5.0"}),
            "--set: train.steps is the number 5.0; allowed: integer, 1 to 1000");
}

TEST_F(ConfigSchemaTest, OnTheCommandLineAStringNeedsNoQuotes) {
  load(needed_, {"run.folder=2024", "run.colour=red"});
  EXPECT_EQ(sample_.folder, "2024");
  EXPECT_EQ(error_of(needed_ + "[run]\nfolder = 2024"),
            "run.toml:6: run.folder is the integer 2024; allowed: string");
}

TEST_F(ConfigSchemaTest, WrongTypes) {
  EXPECT_EQ(error_of(needed_ + "rate = '1'"),
            "run.toml:5: train.rate is the string \"1\"; allowed: number, 0 or more, less than 1");
  EXPECT_EQ(error_of(needed_, {"data.cache=1"}), "--set: data.cache is the integer 1; allowed: true, false");
  EXPECT_EQ(error_of(needed_, {"data.shards=a"}),
            "--set: data.shards is the string \"a\"; allowed: list of strings");
  EXPECT_EQ(error_of(needed_, {"data.shards=[]"}),
            "--set: data.shards is the list []; allowed: list of strings");
  EXPECT_EQ(error_of(needed_, {"data.shards=['']"}),
            "--set: data.shards is the list [\"\"]; allowed: list of strings");
  EXPECT_EQ(error_of(needed_, {"train.rate=2024-01-02"}),
            "--set: train.rate is a date or a time; allowed: number, 0 or more, less than 1");
}

TEST_F(ConfigSchemaTest, OutOfRange) {
  EXPECT_EQ(error_of(needed_, {"train.steps=0"}),
            "--set: train.steps is the integer 0; allowed: integer, 1 to 1000");
  EXPECT_EQ(error_of(needed_, {"train.rate=1"}),
            "--set: train.rate is the integer 1; allowed: number, 0 or more, less than 1");
  EXPECT_NE(error_of(needed_, {"train.rate=nan"}), "no error");
  EXPECT_NE(error_of(needed_, {"train.rate=-inf"}), "no error");
  EXPECT_EQ(error_of(needed_, {"data.height=100"}),
            "--set: data.height is the integer 100; allowed: integer, 16 or more, multiple of 16");
  EXPECT_EQ(error_of(needed_, {"run.colour=green"}),
            "--set: run.colour is the string \"green\"; allowed: \"red\", \"blue\"");
}

TEST_F(ConfigSchemaTest, UnknownKeysNameTheNearest) {
  EXPECT_EQ(error_of(needed_ + "step = 5"), "run.toml:5: unknown key train.step; did you mean train.steps?");
  EXPECT_EQ(error_of(needed_, {"train.height=5"}),
            "--set: unknown key train.height; did you mean data.height?");
  EXPECT_EQ(error_of(needed_, {"lora.alpha=5"}), "--set: unknown key lora.alpha; see the manual");
  EXPECT_EQ(error_of("step = 5\n" + needed_), "run.toml:1: unknown key step; did you mean train.steps?");
  EXPECT_EQ(error_of("\"train.steps\" = 5\n" + needed_),
            "run.toml:1: unknown key \"train.steps\"; did you mean train.steps?");
  EXPECT_EQ(error_of(needed_ + "[optimizer]"), "run.toml:5: unknown key optimizer; see the manual");
}

TEST_F(ConfigSchemaTest, SectionsAreNoKeys) {
  EXPECT_EQ(error_of(needed_, {"run=5"}), "--set: run is a section and takes no value; see the manual");
  EXPECT_EQ(error_of(needed_ + "[[run]]\nfolder='x'"),
            "run.toml:5: run is a section and takes no value; see the manual");
  EXPECT_EQ(error_of(needed_ + "[run]"), "no error");
}

TEST_F(ConfigSchemaTest, AllMistakesAtOnce) {
  EXPECT_EQ(error_of("[train]\nrate = 7\ntolerance = 1\n"),
            "3 mistakes: (1) run.toml:2: train.rate is the integer 7; allowed: number, 0 or more, less than 1"
            " (2) run.toml:3: unknown key train.tolerance; see the manual"
            " (3) run.toml: missing: train.steps, data.shards; see the manual");
}

TEST_F(ConfigSchemaTest, ALongValueIsCutInTheMessage) {
  const std::string error = error_of(needed_, {"run.colour=" + std::string(5000, 'x')});
  EXPECT_LT(error.size(), 300u);
  EXPECT_NE(error.find("xxx...; allowed"), std::string::npos);
}

TEST_F(ConfigSchemaTest, RulesSpanKeys) {
  EXPECT_EQ(error_of(needed_, {"data.height=512"}), "run.toml: data.height is too large for train.steps");
}

TEST_F(ConfigSchemaTest, DumpReadsBackToTheSame) {
  load(needed_,
       {"train.rate=0.1000000000000000055", "run.folder=\"a \\\" b\\n\"", "data.shards=['x', \"y'\"]"});
  const std::string dump = schema_.dump();
  const Sample before = sample_;
  sample_ = Sample{};
  load(dump);
  EXPECT_EQ(schema_.dump(), dump);
  EXPECT_EQ(sample_.rate, before.rate);
  EXPECT_EQ(sample_.folder, before.folder);
  EXPECT_EQ(sample_.shards, before.shards);
}

TEST_F(ConfigSchemaTest, ExplainListsEveryKeyAligned) {
  EXPECT_EQ(schema_.explain(),
            "key          allowed                              default   meaning\n"
            "\n"
            "train.steps  integer, 1 to 1000                   required  optimizer steps\n"
            "train.rate   number, 0 or more, less than 1       0.1       learning rate\n"
            "\n"
            "data.height  integer, 16 or more, multiple of 16  64        pixels\n"
            "data.cache   true, false                          false     keep latents\n"
            "data.shards  list of strings                      required  tar files\n"
            "\n"
            "run.folder   string                               \"out\"     where to write\n"
            "run.colour   \"red\", \"blue\"                        \"blue\"    paint\n");
}

}  // namespace
}  // namespace flowshard
