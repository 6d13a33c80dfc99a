#include "training/train_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/error.h"

namespace flowshard::training {
namespace {

constexpr const char* kMinimal =
    "[run]\noutput_dir = 'runs/a'\n[model]\npath = 'models/a'\n[data]\nshards = ['a.tar']\n[train]\nsteps = "
    "10\n";

TrainConfig with(const std::vector<std::string>& assignments) {
  std::vector<ConfigEntry> overrides;
  for (const auto& assignment : assignments) overrides.push_back(parse_assignment(assignment, "--set"));
  return parse_train_config(kMinimal, "run.toml", overrides);
}

std::string error_of(const std::vector<std::string>& assignments) {
  try {
    with(assignments);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(TrainConfig, FourKeysSuffice) {
  const TrainConfig config = with({});
  EXPECT_EQ(config.run.output_dir, "runs/a");
  EXPECT_EQ(config.train.steps, 10);
  EXPECT_EQ(config.checkpoint.every_steps, 200);
  EXPECT_EQ(config.flow.shift, Shift::kResolution);
  EXPECT_EQ(config.optimizer.lr, 2e-5);
}

TEST(TrainConfig, MissingKeysAreAllListed) {
  try {
    parse_train_config("", "run.toml");
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "run.toml: missing: run.output_dir, model.path, data.shards, train.steps; "
                 "flowshard train --explain lists all keys");
  }
}

TEST(TrainConfig, OverridesWin) {
  const TrainConfig config =
      with({"train.steps=7", "parallel.strategy=no_shard", "precision.mode=bf16", "train.steps=8"});
  EXPECT_EQ(config.train.steps, 8);
  EXPECT_EQ(config.parallel.strategy, Strategy::kNoShard);
  EXPECT_EQ(config.precision.mode, Precision::kBf16);
}

TEST(TrainConfig, ImpossibleValuesNameTheRange) {
  const std::string side = "allowed: integer, 16 to 4096, multiple of 16";
  EXPECT_EQ(error_of({"data.height=100"}), "--set: data.height is the integer 100; " + side);
  EXPECT_EQ(error_of({"data.width=0"}), "--set: data.width is the integer 0; " + side);
  EXPECT_EQ(error_of({"data.width=-64"}), "--set: data.width is the integer -64; " + side);
  EXPECT_EQ(error_of({"data.width=1048576"}), "--set: data.width is the integer 1048576; " + side);
  for (const std::string bad : {"train.steps=-1",
                                "train.batch_size=0",
                                "train.gradient_accumulation_steps=0",
                                "optimizer.lr=-1",
                                "optimizer.lr=nan",
                                "optimizer.beta1=1",
                                "optimizer.eps=0",
                                "ema.decay=1",
                                "text.caption_dropout=1.5",
                                "text.max_sequence_length=513",
                                "checkpoint.keep=0",
                                "checkpoint.every_steps=0",
                                "validation.every_steps=0",
                                "validation.samples=-1",
                                "validation.timesteps=random",
                                "run.seed=-1",
                                "distributed.timeout_seconds=0",
                                "parallel.strategy=fsdp",
                                "precision.mode=fp64",
                                "run.device=tpu",
                                "flow.shift=true",
                                "memory.activation_checkpointing=true",
                                "data.cache_in_memory=1",
                                "run.output_dir=\"\"",
                                "lora.rank=4"}) {
    EXPECT_NE(error_of({bad}), "no error") << bad;
  }
}

TEST(TrainConfig, EachTimestepOfValidationHasASample) {
  EXPECT_EQ(error_of({"validation.samples=7"}),
            "run.toml: validation.samples is 7: give 8 or more, one for each of the 8 timesteps");
  EXPECT_EQ(with({"validation.samples=8"}).validation.samples, 8);
}

TEST(TrainConfig, TheRunMayNotWriteIntoTheModel) {
  EXPECT_EQ(error_of({"run.output_dir=./models/b/../a/"}),
            "run.toml: run.output_dir is the folder of model.path; give the run a folder of its own");
}

TEST(TrainConfig, DumpReadsBackToTheSame) {
  const TrainConfig config =
      with({"optimizer.lr=0.1234567890123456789", "run.seed=9223372036854775807", "flow.shift=none",
            "data.shards=['a b.tar', \"quote'd-{0..3}.tar\"]", "run.device=cuda", "ema.decay=0.9999"});
  const std::string dump = to_toml(config);
  const TrainConfig back = parse_train_config(dump, "dump");
  EXPECT_EQ(to_toml(back), dump);
  EXPECT_EQ(back.optimizer.lr, config.optimizer.lr);
  EXPECT_EQ(back.run.seed, config.run.seed);
  EXPECT_EQ(back.data.shards, config.data.shards);
  EXPECT_EQ(back.run.device, Device::kCuda);
  EXPECT_EQ(back.flow.shift, Shift::kNone);
  EXPECT_EQ(back.ema.decay, config.ema.decay);
}

TEST(TrainConfig, ExplainShowsEveryKeyOfTheDump) {
  const std::string explained = explain_train_config();
  std::set<std::string> sections;
  long num_lines = std::count(explained.begin(), explained.end(), '\n');
  for (const ConfigEntry& entry : parse_toml(to_toml(with({})), "dump")) {
    EXPECT_NE(explained.find("\n" + entry.key + " "), std::string::npos) << entry.key;
    sections.insert(entry.key.substr(0, entry.key.find('.')));
    --num_lines;
  }
  EXPECT_EQ(num_lines, 1 + static_cast<long>(sections.size()));  // the heading; an empty line a section
}

}  // namespace
}  // namespace flowshard::training
