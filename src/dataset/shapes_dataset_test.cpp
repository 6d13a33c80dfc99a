#include "dataset/shapes_dataset.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "core/error.h"
#include "core/temporary_folder.h"
#include "dataset/shapes_prompts.h"

namespace flowshard::dataset {
namespace {

namespace fs = std::filesystem;

class ShapesDataset : public testing::Test {
 protected:
  ShapesDatasetOptions options(const char* name) const {
    return {.output = folder_ / name, .num_samples = 50, .samples_per_shard = 20};
  }

  static std::string read(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  TemporaryFolder folder_;
};

TEST_F(ShapesDataset, TheSameOptionsGiveTheSameBytes) {
  const ShapesDatasetSummary summary = write_shapes_dataset(options("a"));
  EXPECT_EQ(summary.num_shards, 3);
  write_shapes_dataset(options("b"));
  int files = 0;
  for (const auto& entry : fs::directory_iterator(folder_ / "a")) {
    EXPECT_TRUE(read(entry.path()) == read(folder_ / "b" / entry.path().filename())) << entry.path();
    ++files;
  }
  EXPECT_EQ(files, 4);  // three shards, the prompts, and no temporary file
  ShapesDatasetOptions other = options("c");
  other.seed = 1;
  write_shapes_dataset(other);
  EXPECT_FALSE(read(folder_ / "a/shapes-000000.tar") == read(folder_ / "c/shapes-000000.tar"));
}

TEST_F(ShapesDataset, RefusesAFolderWithShardsOfALargerSet) {
  write_shapes_dataset(options("a"));
  ShapesDatasetOptions smaller = options("a");
  smaller.num_samples = 40;
  EXPECT_THROW(write_shapes_dataset(smaller), ConfigError);
  smaller.num_samples = 0;
  EXPECT_THROW(write_shapes_dataset(smaller), ConfigError);
}

TEST_F(ShapesDataset, PromptsAreReadBackAsWritten) {
  write_shapes_dataset(options("a"));
  const std::vector<ShapesPrompt> read = read_prompts(folder_ / "a/heldout.jsonl");
  const std::vector<ShapesPrompt> made = held_out_prompts(0, 100, 200);
  ASSERT_EQ(read.size(), 300U);
  for (size_t i = 0; i < read.size(); ++i) {
    EXPECT_EQ(read[i].prompt, made[i].prompt);
    EXPECT_EQ(read[i].seed, made[i].seed);
    EXPECT_EQ(read[i].scene, made[i].scene);
    EXPECT_EQ(read[i].scene.objects.size(), i < 100 ? 1U : 2U);
  }
}

TEST_F(ShapesDataset, ABadPromptLineIsNamed) {
  const auto message = [&](const std::string& text) -> std::string {
    std::ofstream(folder_ / "p.jsonl") << text;
    try {
      read_prompts(folder_ / "p.jsonl");
    } catch (const DataError& error) {
      return error.what();
    }
    return "no error";
  };
  const std::string good =
      R"({"prompt":"a red circle","seed":0,"objects":[{"color":"red","shape":"circle","x":32,"y":32,"radius":9}]})";
  EXPECT_EQ(message(good), "no error");
  EXPECT_NE(message(good + "\n{\"prompt\":").find("p.jsonl:2:"), std::string::npos);
  EXPECT_NE(message(R"({"prompt":"x","seed":0,"objects":[{"color":"mauve"}]})").find("mauve"),
            std::string::npos);
  EXPECT_NE(message(R"({"prompt":"x","seed":0,"objects":[]})").find("one or two"), std::string::npos);
  EXPECT_NE(message("").find("no prompt"), std::string::npos);
  EXPECT_THROW(read_prompts(folder_ / "absent.jsonl"), ConfigError);
}

}  // namespace
}  // namespace flowshard::dataset
