#include "core/json_config.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "core/temporary_folder.h"

namespace flowshard {
namespace {

struct JsonConfigTest : testing::Test {
  JsonConfig read(const std::string& content) {
    std::ofstream(file) << content;
    return JsonConfig(file);
  }
  template <typename Action>
  std::string error_of(Action action) {
    try {
      action();
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  }
  const TemporaryFolder folder;
  const std::filesystem::path file = folder / "config.json";
};

TEST_F(JsonConfigTest, ReadsTypedValuesAndFallbacks) {
  const JsonConfig config = read(
      R"({"layers": 3, "eps": 1e-6, "tied": true, "act": "silu", "channels": [8, 16], "types": ["a"], "shift": null})");
  EXPECT_EQ(config.integer("layers"), 3);
  EXPECT_EQ(config.number("eps"), 1e-6);
  EXPECT_EQ(config.number("layers"), 3.0);
  EXPECT_TRUE(config.boolean("tied"));
  EXPECT_EQ(config.one_of("act", {"relu", "silu"}), "silu");
  EXPECT_EQ(config.sizes("channels"), (std::vector<int64_t>{8, 16}));
  EXPECT_EQ(config.texts("types"), std::vector<std::string>{"a"});
  EXPECT_EQ(config.number("shift", 0.5), 0.5);
  EXPECT_EQ(config.size("absent", 7), 7);
  EXPECT_FALSE(config.has("shift"));
}

TEST_F(JsonConfigTest, ErrorsNameFileAndKey) {
  const JsonConfig config = read(R"({"layers": "3", "heads": 0, "huge": 18446744073709551615, "flag": 1,
                                     "act": "relu", "channels": [8, 1.5], "eps": -1})");
  const std::string at = file.string() + ": ";
  EXPECT_EQ(error_of([&] { config.size("layers"); }),
            at + "layers is \"3\", but must be an integer from 1 to 16777216");
  EXPECT_EQ(error_of([&] { config.size("heads"); }),
            at + "heads is 0, but must be an integer from 1 to 16777216");
  EXPECT_EQ(error_of([&] { config.integer("huge"); }),
            at + "huge is 18446744073709551615, but must be an integer");
  EXPECT_EQ(error_of([&] { config.boolean("flag"); }), at + "flag is 1, but must be true or false");
  EXPECT_EQ(error_of([&] {
              config.one_of("act", {"silu", "gelu"});
            }),
            at + "act is \"relu\", but only silu or gelu is supported");
  EXPECT_EQ(error_of([&] { config.sizes("channels"); }),
            at + "channels is [8,1.5], but must be a list of integers from 1 to 16777216");
  EXPECT_EQ(error_of([&] { config.depth("huge"); }),
            at + "huge is 18446744073709551615, but must be an integer");
  EXPECT_EQ(error_of([&] { config.depth("eps"); }), at + "eps is -1, but must be an integer from 0 to 1000");
  EXPECT_EQ(error_of([&] { config.positive("eps"); }), at + "eps is -1, but must be above 0");
  EXPECT_EQ(error_of([&] { config.text("absent"); }), at + "the key absent is missing");
}

TEST_F(JsonConfigTest, RefusesWhatIsNoJsonObject) {
  EXPECT_NE(error_of([&] { JsonConfig(file.string() + ".absent"); }).find("no such file"), std::string::npos);
  EXPECT_NE(error_of([&] { JsonConfig(file.parent_path()); }).find("cannot be read"), std::string::npos);
  for (const char* content : {"", "{\"a\": ", "{\"a\": NaN}", "{\"a\": 1e999}", "{\"a\": \"\xff\"}"}) {
    const std::string message = error_of([&] { read(content); });
    EXPECT_NE(message.find("its JSON "), std::string::npos) << content << ": " << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
  EXPECT_NE(error_of([&] { read("[1]"); }).find("holds no JSON object"), std::string::npos);
}

}  // namespace
}  // namespace flowshard
