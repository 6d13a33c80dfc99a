#include "checkpoint/checkpoint_folder.h"

#include <gtest/gtest.h>

#include <fstream>

#include "checkpoint/checkpoint_fixture.h"
#include "checkpoint/training_checkpoint.h"
#include "core/error.h"
#include "core/temporary_folder.h"

namespace flowshard::checkpoint {
namespace {

namespace fs = std::filesystem;

class CheckpointFolder : public testing::Test {
 protected:
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_.path())) names.push_back(entry.path().filename());
    std::ranges::sort(names);
    return names;
  }
  std::vector<int64_t> steps() const {
    std::vector<int64_t> steps;
    for (const auto& [step, path] : published_checkpoints(folder_.path())) steps.push_back(step);
    return steps;
  }
  void make(const std::string& name, bool with_manifest) const {
    fs::create_directory(folder_.path() / name);
    std::ofstream(folder_.path() / name / "file") << "x";
    if (with_manifest) std::ofstream(folder_.path() / name / "manifest.json") << "{}";
  }

  TemporaryFolder folder_;
};

TEST_F(CheckpointFolder, ListsCompleteCheckpointsByNumber) {
  for (const char* name : {"step-00000009", "step-00000010", "step-123456789", "step-00000011.tmp",
                           "step-00000012.deleted", "step-13", "step-00000014x", "other", "step-"}) {
    make(name, true);
  }
  make("step-00000200", false);
  EXPECT_EQ(steps(), (std::vector<int64_t>{123456789, 10, 9}));
  EXPECT_EQ(latest_checkpoint(folder_.path()), folder_.path() / "step-123456789");
  EXPECT_EQ(latest_checkpoint(folder_.path() / "none"), std::nullopt);
  EXPECT_EQ(step_folder_name(10), "step-00000010");
  EXPECT_EQ(step_folder_name(123456789), "step-123456789");
}

TEST_F(CheckpointFolder, LeftoversAreRemovedAndNothingElse) {
  for (const char* name :
       {"step-00000001", "step-00000002.tmp", "step-00000003.deleted", "step-4.tmp", "my.tmp"}) {
    make(name, false);
  }
  remove_leftovers(folder_.path());
  EXPECT_EQ(names(), (std::vector<std::string>{"my.tmp", "step-00000001", "step-4.tmp"}));
}

TEST_F(CheckpointFolder, KeepsTheNewestOfTheRun) {
  for (const int64_t step : {100, 200, 300}) save_alone(folder_.path(), tiny_state(step), 2);
  EXPECT_EQ(steps(), (std::vector<int64_t>{300, 200}));
  save_alone(folder_.path(), tiny_state(400), 0);
  EXPECT_EQ(steps(), (std::vector<int64_t>{400, 300, 200}));
}

TEST_F(CheckpointFolder, RemovesNeitherOtherRunsNorLaterStepsNorStrangeFolders) {
  save_alone(folder_.path(), tiny_state(100, "other"));
  save_alone(folder_.path(), tiny_state(150));
  save_alone(folder_.path(), tiny_state(900));
  make("step-00000120", true);
  save_alone(folder_.path(), tiny_state(200), 1);  // resumed from 150
  EXPECT_EQ(steps(), (std::vector<int64_t>{900, 200, 120, 100}));
}

TEST_F(CheckpointFolder, UnfinishedNewerOneDoesNotCount) {
  save_alone(folder_.path(), tiny_state(1000));
  make("step-00001500.tmp", false);
  remove_old_checkpoints(folder_.path(), "run", 1500, 1);
  EXPECT_EQ(steps(), (std::vector<int64_t>{1000}));
}

TEST_F(CheckpointFolder, SameStepAgainReplacesTheOldOne) {
  save_alone(folder_.path(), tiny_state(100, "first"));
  save_alone(folder_.path(), tiny_state(100, "second"));
  EXPECT_EQ(names(), (std::vector<std::string>{"step-00000100"}));
  EXPECT_EQ(TrainingCheckpoint::open(folder_.path() / "step-00000100", true).state().run_id, "second");
}

}  // namespace
}  // namespace flowshard::checkpoint
