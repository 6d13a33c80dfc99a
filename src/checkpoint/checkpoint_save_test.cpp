#include "checkpoint/checkpoint_save.h"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "checkpoint/checkpoint_fixture.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/training_checkpoint.h"
#include "core/error.h"
#include "core/temporary_folder.h"

namespace flowshard::checkpoint {
namespace {

namespace fs = std::filesystem;

class SaveTest : public testing::Test {
 protected:
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_.path())) names.push_back(entry.path().filename());
    std::ranges::sort(names);
    return names;
  }
  std::string error_of_save(const TrainingState& state, const Agree& agree = alone) const {
    try {
      save_alone(folder_.path(), state, 0, agree);
    } catch (const CheckpointError& error) {
      return error.what();
    }
    return "no error";
  }
  // Runs `save` in a child that is killed after `delay`, or kills itself.
  template <typename Function>
  static void run_and_kill(const Function& save, std::chrono::microseconds delay) {
    const pid_t child = ::fork();
    if (child == 0) {
      save();
      ::_exit(0);
    }
    std::this_thread::sleep_for(delay);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }

  TemporaryFolder folder_;
  const fs::path old_ = folder_.path() / "step-00000100";
  const fs::path new_ = folder_.path() / "step-00000200";
};

TEST_F(SaveTest, ShardedAndUnshardedHoldTheSame) {
  for (const int64_t num_shards : {1, 2, 4}) {
    for (const std::string& error :
         save_with_threads(options_of_ranks(folder_.path(), 4, num_shards), tiny_state(num_shards))) {
      ASSERT_EQ(error, "");
    }
    const auto checkpoint = TrainingCheckpoint::open(folder_.path() / step_folder_name(num_shards), true);
    EXPECT_EQ(checkpoint.layout().num_shards, num_shards);
    for (const GroupLayout& group : tiny_layouts(1)) {
      EXPECT_TRUE(at::equal(checkpoint.read_flat("model", group, 0, group.numel), tiny_flat(group, "model")));
    }
    // Shards, layout, state, manifest: no digest or temporary file is left.
    EXPECT_EQ(std::distance(fs::directory_iterator(checkpoint.path()), {}), num_shards + 3);
  }
}

TEST_F(SaveTest, FailureOfOneRankIsAnErrorOnAllAndLeavesNothing) {
  save_alone(folder_.path(), tiny_state(100));
  std::vector<SaveOptions> options = options_of_ranks(folder_.path(), 3, 3);
  options[1].folder = folder_.path() / "none";  // what rank 1 sees when its mount is gone
  const std::vector<std::string> errors = save_with_threads(options, tiny_state(200));
  EXPECT_NE(errors[0].find("another rank failed"), std::string::npos) << errors[0];
  EXPECT_NE(errors[1].find("cannot write " + (folder_.path() / "none").string()), std::string::npos)
      << errors[1];
  EXPECT_NE(errors[2].find("another rank failed"), std::string::npos) << errors[2];
  EXPECT_EQ(names(), (std::vector<std::string>{"step-00000100"}));
}

TEST_F(SaveTest, KillBetweenAnyTwoStepsLeavesTheOldOneWhole) {
  save_alone(folder_.path(), tiny_state(100));
  for (int killed_at = 0; killed_at < 3; ++killed_at) {
    run_and_kill(
        [&] {
          int calls = 0;
          save_alone(folder_.path(), tiny_state(200), 0, [&](Progress own) {
            if (own == Progress::kDone && calls++ == killed_at) ::raise(SIGKILL);
            return own;
          });
        },
        std::chrono::seconds(1));
    EXPECT_EQ(TrainingCheckpoint::open(old_, true).state().step, 100);
    const bool published = killed_at == 2;  // the third agreement follows the rename
    EXPECT_EQ(fs::exists(new_), published) << killed_at;
    EXPECT_EQ(latest_checkpoint(folder_.path()), published ? new_ : old_);
    if (published) {
      EXPECT_EQ(TrainingCheckpoint::open(new_, true).state().step, 200);
      fs::remove_all(new_);
    }
  }
  save_alone(folder_.path(), tiny_state(300));
  EXPECT_EQ(names(), (std::vector<std::string>{"step-00000100", "step-00000300"}));
}

TEST_F(SaveTest, KillAtAnyMomentLeavesOnlyWholeCheckpoints) {
  const int64_t numel = int64_t{1} << 20;
  const GroupLayout layout{.name = "", .entries = {{"w", {numel}, 0}}, .numel = numel, .padded_numel = numel};
  const std::vector<GroupShards> groups = {{layout, {{"model", at::ones({numel})}}}};
  const SaveOptions options{.folder = folder_.path(), .rank = 0, .num_shards = 1, .keep = 1};
  CheckpointSave(options, groups, tiny_state(1)).wait(alone);
  for (int64_t step = 2; step <= 16; ++step) {
    // Steps 2, 2, 3, 3, ...: every other save replaces one of the same step, if the last one came that far.
    run_and_kill([&] { CheckpointSave(options, groups, tiny_state(step / 2 + 1)).wait(alone); },
                 std::chrono::milliseconds(6 * (step - 2)));
    const auto published = published_checkpoints(folder_.path());
    ASSERT_FALSE(published.empty());
    for (const auto& [number, path] : published) {
      EXPECT_EQ(TrainingCheckpoint::open(path, true).state().step, number);
    }
  }
}

TEST_F(SaveTest, ShardThatIsNotWhatWasWrittenIsNotPublished) {
  save_alone(folder_.path(), tiny_state(100));
  const fs::path shard = folder_.path() / "step-00000200.tmp" / shard_file_name(0, 1);
  const auto after_writing = [&](const auto& action) {
    return [&, calls = 0](Progress own) mutable {
      if (own == Progress::kDone && ++calls == 2) action();
      return own;
    };
  };
  EXPECT_NE(error_of_save(tiny_state(200), after_writing([&] { fs::remove(shard); }))
                .find("safetensors is missing"),
            std::string::npos);
  EXPECT_EQ(names(), (std::vector<std::string>{"step-00000100"}));
  EXPECT_NE(
      error_of_save(tiny_state(200), after_writing([&] { fs::resize_file(shard, 9); })).find("has 9 bytes"),
      std::string::npos);
  EXPECT_EQ(names(), (std::vector<std::string>{"step-00000100"}));
}

TEST_F(SaveTest, StorageThatDoesNotAnswerIsAnError) {
  const int64_t numel = int64_t{1} << 24;
  const GroupLayout layout{.name = "", .entries = {{"w", {numel}, 0}}, .numel = numel, .padded_numel = numel};
  save_alone(folder_.path(), tiny_state(100));
  CheckpointSave save({.folder = folder_.path(), .deadline = std::chrono::seconds(0)},
                      {{layout, {{"model", at::ones({numel})}}}}, tiny_state(200));
  try {
    save.wait(alone);
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_NE(std::string(error.what()).find("step-00000200: it is not done in time"), std::string::npos);
  }
  EXPECT_NO_THROW(TrainingCheckpoint::open(old_, true));
}

TEST_F(SaveTest, FileSizeLimitIsAnErrorAndLeavesNothing) {
  save_alone(folder_.path(), tiny_state(100));
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {.rlim_cur = 300, .rlim_max = before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string error = error_of_save(tiny_state(200));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(error.find("rank-00000-of-00001.safetensors: File too large"), std::string::npos) << error;
  EXPECT_EQ(names(), (std::vector<std::string>{"step-00000100"}));
  EXPECT_NO_THROW(TrainingCheckpoint::open(old_, true));
}

TEST_F(SaveTest, FullFileSystemIsAnErrorBeforeAnythingIsWritten) {
  if (::mount("none", folder_.path().c_str(), "tmpfs", 0, "size=512k") != 0) {
    GTEST_SKIP() << "not run: mounting a small file system needs root";
  }
  const std::string error = error_of_save(tiny_state(200));
  const bool empty = fs::is_empty(folder_.path());
  ::umount2(folder_.path().c_str(), MNT_DETACH);
  EXPECT_NE(error.find("only 0 MB are free"), std::string::npos) << error;
  EXPECT_TRUE(empty);
}

TEST_F(SaveTest, FolderThatCannotBeMadeIsAnError) {
  storage::write_file(folder_.path() / "file", "x");
  try {
    save_alone(folder_.path() / "file" / "checkpoints", tiny_state(1));
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_NE(std::string(error.what()).find("cannot make the folder"), std::string::npos);
  }
}

}  // namespace
}  // namespace flowshard::checkpoint
