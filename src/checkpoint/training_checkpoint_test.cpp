#include "checkpoint/training_checkpoint.h"

#include <gtest/gtest.h>

#include <fstream>

#include "checkpoint/checkpoint_fixture.h"
#include "checkpoint/checkpoint_json.h"
#include "core/error.h"
#include "core/temporary_folder.h"

namespace flowshard::checkpoint {
namespace {

namespace fs = std::filesystem;

class TrainingCheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const std::string& error :
         save_with_threads(options_of_ranks(folder_.path(), 3, 3), tiny_state(200))) {
      ASSERT_EQ(error, "");
    }
  }
  void append(const std::string& file, const std::string& text) const {
    std::ofstream(path_ / file, std::ios::app) << text;
  }
  void replace_in_json(const std::string& file, const std::string& pointer,
                       const nlohmann::json& value) const {
    nlohmann::json json = read_json(path_ / file);
    json[nlohmann::json::json_pointer(pointer)] = value;
    const storage::FileDigest digest = storage::write_file(path_ / file, json.dump());
    if (file != "manifest.json")
      replace_in_json("manifest.json", "/files/" + file + "/size_bytes", digest.size_bytes);
  }
  template <typename ErrorType>
  void expect_error(const std::vector<std::string>& parts, bool verify_checksums = false) const {
    try {
      TrainingCheckpoint::open(path_, verify_checksums);
      ADD_FAILURE() << "no error that says " << parts[0];
    } catch (const ErrorType& error) {
      for (const std::string& part : parts) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
            << error.what() << "\n lacks " << part;
      }
    }
  }

  TemporaryFolder folder_;
  fs::path path_ = folder_.path() / "step-00000200";
};

TEST_F(TrainingCheckpointTest, StateAndParametersComeBack) {
  const TrainingCheckpoint checkpoint = TrainingCheckpoint::open(path_, true);
  EXPECT_EQ(checkpoint.state(), tiny_state(200));
  EXPECT_EQ(checkpoint.parameters().size(), 5U);
  for (const GroupLayout& group : tiny_layouts(1)) {
    for (const auto& entry : group.entries) {
      for (const char* state : {"model", "exp_avg"}) {
        const at::Tensor wanted =
            tiny_flat(group, state).narrow(0, entry.offset, entry.numel()).view(entry.shape);
        EXPECT_TRUE(at::equal(checkpoint.read_parameter(state, entry.parameter), wanted)) << entry.parameter;
      }
    }
  }
  EXPECT_TRUE(checkpoint.has("model", "final.bias"));
  EXPECT_FALSE(checkpoint.has("ema", "final.bias"));
  EXPECT_FALSE(checkpoint.has("model", "final"));
  EXPECT_THROW(checkpoint.read_parameter("ema", "final.bias"), CheckpointError);
}

TEST_F(TrainingCheckpointTest, StatesAreStoredInTheirDtypeAndReadAsFp32) {
  const TrainingCheckpoint checkpoint = TrainingCheckpoint::open(path_);
  for (const auto& group : checkpoint.layout().groups) EXPECT_EQ(group.states, kTinyStates);
  const SafetensorsFile shard(path_ / "rank-00001-of-00003.safetensors");
  EXPECT_EQ(shard.tensor("exp_avg/double_blocks.0").scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(shard.tensor("exp_avg/double_blocks.0").to(at::kFloat),
                        tiny_flat(tiny_layouts(3)[1], "exp_avg").narrow(0, 11, 11)));
  EXPECT_EQ(checkpoint.read_parameter("exp_avg", "final.bias").scalar_type(), at::kFloat);
}

TEST_F(TrainingCheckpointTest, TheFirstVersionOfTheFormatIsRead) {
  path_ = folder_.path() / "step-00000300";
  std::vector<GroupShards> groups = tiny_shards(0, 1);
  for (GroupShards& group : groups) group.states.resize(1);  // version 1 knows fp32 alone
  CheckpointSave({.folder = folder_.path()}, groups, tiny_state(300)).wait(alone);
  for (const char* group : {"0", "1", "2"}) {
    replace_in_json("layout.json", fmt::format("/groups/{}/states", group), {"model"});
  }
  replace_in_json("manifest.json", "/version", 1);
  const TrainingCheckpoint checkpoint = TrainingCheckpoint::open(path_);
  for (const GroupLayout& group : tiny_layouts(1)) {
    EXPECT_TRUE(at::equal(checkpoint.read_flat("model", group, 0, group.numel), tiny_flat(group, "model")));
  }
}

TEST_F(TrainingCheckpointTest, AnyNumberOfRanksReadsItsSlices) {
  const TrainingCheckpoint checkpoint = TrainingCheckpoint::open(path_);
  for (const int64_t num_shards : {1, 2, 5, 40}) {
    for (const GroupLayout& group : tiny_layouts(num_shards)) {
      std::vector<at::Tensor> slices;
      const int64_t shard_numel = group.padded_numel / num_shards;
      for (int64_t rank = 0; rank < num_shards; ++rank) {
        slices.push_back(
            checkpoint.read_flat("exp_avg", group, rank * shard_numel, (rank + 1) * shard_numel));
      }
      EXPECT_TRUE(at::equal(at::cat(slices), tiny_flat(group, "exp_avg"))) << group.name << " " << num_shards;
    }
  }
}

TEST_F(TrainingCheckpointTest, AnotherGroupingReadsTheSameParameters) {
  const TrainingCheckpoint checkpoint = TrainingCheckpoint::open(path_);
  const GroupLayout joined{.name = "all",
                           .entries = {{"final.bias", {1}, 0}, {"double_blocks.0.scale", {7}, 4}},
                           .numel = 11,
                           .padded_numel = 12};
  const at::Tensor flat = checkpoint.read_flat("model", joined, 0, 12);
  EXPECT_TRUE(at::equal(flat[0], checkpoint.read_parameter("model", "final.bias")[0]));
  EXPECT_TRUE(at::equal(flat.slice(0, 4, 11), checkpoint.read_parameter("model", "double_blocks.0.scale")));
  EXPECT_TRUE(at::equal(flat.slice(0, 1, 4), at::zeros({3})));
  EXPECT_TRUE(at::equal(checkpoint.read_flat("model", joined, 6, 9), flat.slice(0, 6, 9)));
}

TEST_F(TrainingCheckpointTest, ModelWithOtherParametersIsRefused) {
  const TrainingCheckpoint checkpoint = TrainingCheckpoint::open(path_);
  std::vector<NamedTensor> parameters;
  for (const auto& entry : checkpoint.parameters())
    parameters.emplace_back(entry.parameter, at::zeros(entry.shape));
  checkpoint.fill_parameters("model", parameters);
  EXPECT_TRUE(at::equal(parameters[1].second, checkpoint.read_parameter("model", "img_in.bias")));
  EXPECT_THROW(checkpoint.fill_parameters("ema", parameters), CheckpointError);

  parameters[0] = {"img_in.weight", at::zeros({2, 5})};
  parameters[4] = {"final.biases", at::zeros({1})};
  try {
    checkpoint.fill_parameters("model", parameters);
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_EQ(std::string(error.what()),
              path_.string() +
                  ": its tensors do not fit the model: 1 missing (\"final.biases\"; the file has "
                  "\"final.bias\"); 1 unexpected (\"final.bias\"); 1 of another shape or kind "
                  "(\"img_in.weight\": [5, 2], the model has [2, 5])");
  }
  GroupLayout transposed = tiny_layouts(1)[0];
  transposed.entries[0].shape = {2, 5};
  EXPECT_THROW(checkpoint.read_flat("model", transposed, 0, 3), CheckpointError);
}

TEST_F(TrainingCheckpointTest, EveryDamagedFileIsNamed) {
  fs::remove(path_ / "rank-00000-of-00003.safetensors");
  fs::resize_file(path_ / "rank-00002-of-00003.safetensors", 100);
  append("state.json", " ");
  expect_error<CheckpointError>({"rank-00000-of-00003.safetensors is missing",
                                 "rank-00002-of-00003.safetensors has 100 bytes instead of",
                                 "state.json has"});
}

TEST_F(TrainingCheckpointTest, FlippedBitIsFoundByItsChecksum) {
  const fs::path file = path_ / "rank-00001-of-00003.safetensors";
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(-1, std::ios::end);
  const char last = static_cast<char>(stream.get());
  stream.seekp(-1, std::ios::end);
  stream.put(static_cast<char>(last ^ 1));
  stream.close();
  EXPECT_NO_THROW(TrainingCheckpoint::open(path_));
  expect_error<CheckpointError>({"rank-00001-of-00003.safetensors has other bytes than were written"}, true);
}

TEST_F(TrainingCheckpointTest, LyingJsonIsRefused) {
  replace_in_json("layout.json", "/groups/0/parameters/1/offset", 9);
  expect_error<CheckpointError>({"layout.json", "img_in.bias", "cannot lie at element 9"});
  replace_in_json("layout.json", "/groups/0/parameters/1/offset", 11);
  expect_error<CheckpointError>({"layout.json", "img_in.bias", "cannot lie at element 11"});
  replace_in_json("layout.json", "/groups/0/parameters/1/offset", 10);
  replace_in_json("layout.json", "/groups/0/padded_numel", 16);
  expect_error<CheckpointError>({"layout.json", "16 with its padding for 3 shards"});
  replace_in_json("layout.json", "/groups/0/padded_numel", 18);
  expect_error<CheckpointError>({"rank-00000-of-00003", "\"model/\"", "F32 [6]"});
  replace_in_json("layout.json", "/groups/0/padded_numel", 15);
  replace_in_json("layout.json", "/groups/0/states/1/dtype", "F32");
  expect_error<CheckpointError>({"rank-00000-of-00003", "\"exp_avg/\"", "F32 [5]"});
  replace_in_json("layout.json", "/groups/0/states/1/dtype", "I64");
  expect_error<CheckpointError>({"layout.json", "exp_avg of group '' is not F32, BF16 or F16"});
  replace_in_json("layout.json", "/groups/0/states/1/name", "model");
  expect_error<CheckpointError>({"layout.json", "a state twice"});
  replace_in_json("layout.json", "/groups/0/padded_numel", "15");
  expect_error<CheckpointError>({"layout.json", "no layout of a checkpoint"});
}

TEST_F(TrainingCheckpointTest, AnotherNumberOfShardsThanFilesIsRefused) {
  replace_in_json("layout.json", "/num_shards", 1);
  expect_error<CheckpointError>({"rank-00000-of-00001.safetensors is not in its manifest.json"});
}

TEST_F(TrainingCheckpointTest, WhatIsNoCheckpointIsSaid) {
  for (const char* version : {"3", "0", "\"2\""}) {
    replace_in_json("manifest.json", "/version", nlohmann::json::parse(version));
    expect_error<CheckpointError>(
        {"manifest.json", fmt::format("format version {} cannot be read", version), "versions 1 to 2"});
  }
  replace_in_json("manifest.json", "/version", 2);
  replace_in_json("manifest.json", "/format", "else");
  expect_error<CheckpointError>({"manifest.json", "no manifest of a training checkpoint"});
  fs::remove(path_ / "manifest.json");
  EXPECT_FALSE(TrainingCheckpoint::is_checkpoint(path_));
  expect_error<ConfigError>({"no manifest.json"});
  path_ = folder_.path() / "none";
  expect_error<ConfigError>({"no such checkpoint folder"});
}

TEST_F(TrainingCheckpointTest, UnfinishedFolderIsRefusedByName) {
  fs::rename(path_, folder_.path() / "step-00000200.tmp");
  path_ = folder_.path() / "step-00000200.tmp" / "";
  expect_error<ConfigError>({"interrupted"});
}

}  // namespace
}  // namespace flowshard::checkpoint
