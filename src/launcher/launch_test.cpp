#include "launcher/launch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "core/error.h"
#include "core/temporary_folder.h"

namespace flowshard::launcher {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Each rank runs a shell script in a folder of its test.
class LaunchTest : public testing::Test {
 protected:
  LaunchOptions script(const std::string& text, int ranks = 2) const {
    LaunchOptions options;
    options.program = "/bin/sh";
    options.command = {"sh", "-c", "cd " + folder.path().string() + " || exit 99\n" + text};
    options.processes_per_node = ranks;
    options.grace = milliseconds(3000);
    return options;
  }

  LaunchResult run(const LaunchOptions& options) {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const auto start = steady_clock::now();
    const LaunchResult result = launch(options);
    elapsed = std::chrono::duration_cast<milliseconds>(steady_clock::now() - start);
    out = testing::internal::GetCapturedStdout();
    err = testing::internal::GetCapturedStderr();
    return result;
  }

  std::string file(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(folder / name).rdbuf();
    return text.str();
  }

  const TemporaryFolder folder;
  std::string out, err;
  milliseconds elapsed{0};
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

bool gone_soon(pid_t process) {
  for (int i = 0; i < 300 && kill(process, 0) == 0; ++i) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  return kill(process, 0) != 0;
}

TEST_F(LaunchTest, RanksGetTorchrunsVariables) {
  unsetenv("OMP_NUM_THREADS");
  const auto options = script(
      "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR "
      "$TORCHELASTIC_RESTART_COUNT > $RANK\n"
      "echo $MASTER_PORT $TORCHELASTIC_RUN_ID > job$RANK\n"
      "test $OMP_NUM_THREADS -ge 1");
  EXPECT_EQ(run(options).exit_code, 0) << err;
  EXPECT_EQ(file("0"), "0 0 2 2 0 127.0.0.1 0\n");
  EXPECT_EQ(file("1"), "1 1 2 2 0 127.0.0.1 0\n");
  EXPECT_EQ(file("job0"), file("job1"));
}

TEST_F(LaunchTest, SecondHostHasTheHigherRanks) {
  auto options = script("echo $RANK $LOCAL_RANK $WORLD_SIZE $GROUP_RANK $MASTER_ADDR:$MASTER_PORT > $RANK");
  options.nodes = 2;
  options.node_rank = 1;
  options.endpoint = "gpu-1:29500";
  EXPECT_EQ(run(options).exit_code, 0);
  EXPECT_EQ(file("2"), "2 0 4 1 gpu-1:29500\n");
  EXPECT_EQ(file("3"), "3 1 4 1 gpu-1:29500\n");
}

TEST_F(LaunchTest, GivenThreadCountIsKept) {
  setenv("OMP_NUM_THREADS", "7", 1);
  EXPECT_EQ(run(script("test $OMP_NUM_THREADS = 7")).exit_code, 0);
  unsetenv("OMP_NUM_THREADS");
}

TEST_F(LaunchTest, RankZeroAloneInheritsTheListeningSocket) {
  const auto options = script(
      "if [ $RANK = 0 ]; then readlink /proc/self/fd/$FLOWSHARD_MASTER_LISTEN_FD | grep -q socket\n"
      "else [ -z \"$FLOWSHARD_MASTER_LISTEN_FD\" ]; fi");
  EXPECT_EQ(run(options).exit_code, 0);
}

TEST_F(LaunchTest, OutputOfOtherRanksIsMarked) {
  EXPECT_EQ(run(script("printf 'hello '; sleep 0.1; echo $RANK; echo warn >&2")).exit_code, 0);
  EXPECT_TRUE(contains(out, "[rank 1] hello 1\n"));
  EXPECT_TRUE(out.starts_with("hello 0\n") || contains(out, "\nhello 0\n")) << out;
  EXPECT_TRUE(contains(err, "[rank 1] warn\n"));
}

TEST_F(LaunchTest, FirstFailingRankIsNamedAndTheOthersAreStopped) {
  const LaunchResult result = run(script("[ $RANK = 1 ] && { echo 'no space left' >&2; exit 4; }; sleep 60"));
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_TRUE(contains(result.message, "rank 1 on ")) << result.message;
  EXPECT_TRUE(contains(result.message, "exited with code 4; its last line: no space left")) << result.message;
  EXPECT_LT(elapsed, milliseconds(20000));
}

TEST_F(LaunchTest, RankThatLostItsPeersIsNotBlamedForTheOneThatFailed) {
  const LaunchResult result = run(script("[ $RANK = 0 ] && exit 3; sleep 0.3; echo 'bad tar' >&2; exit 4"));
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_TRUE(contains(result.message, "rank 1")) << result.message;
}

TEST_F(LaunchTest, DeathBySignalIsNamed) {
  const LaunchResult result = run(script("[ $RANK = 1 ] && kill -9 $$; sleep 60"));
  EXPECT_EQ(result.exit_code, 137);
  EXPECT_TRUE(contains(result.message, "rank 1 on ") && contains(result.message, "signal 9 (KILL)"))
      << result.message;
}

TEST_F(LaunchTest, RankThatIgnoresTermIsKilledAfterTheGrace) {
  auto options = script("[ $RANK = 1 ] && exit 5; trap '' TERM; echo $$ > pid; while :; do sleep 1; done");
  options.grace = milliseconds(300);
  EXPECT_EQ(run(options).exit_code, 5);
  EXPECT_TRUE(contains(err, "rank 0 (process ") && contains(err, "did not end in time: killed")) << err;
  EXPECT_LT(elapsed, milliseconds(20000));
}

TEST_F(LaunchTest, FrozenRankDoesNotHoldTheOthers) {
  const LaunchResult result = run(script("[ $RANK = 1 ] && kill -STOP $$; [ $RANK = 0 ] && exit 3"));
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_FALSE(contains(err, "did not end in time")) << err;
}

TEST_F(LaunchTest, AllRanksAreRestartedTogether) {
  auto options = script(
      "echo $TORCHELASTIC_RESTART_COUNT >> attempts$RANK\n"
      "[ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT -lt 2 ] && exit 3\n"
      "[ $TORCHELASTIC_RESTART_COUNT -lt 2 ] && sleep 60; exit 0");
  options.max_restarts = 2;
  EXPECT_EQ(run(options).exit_code, 0);
  EXPECT_EQ(file("attempts0"), "0\n1\n2\n");
  EXPECT_EQ(file("attempts1"), "0\n1\n2\n");
  EXPECT_TRUE(contains(err, "restarting all ranks (1 of 2)")) << err;
}

TEST_F(LaunchTest, ExhaustedRestartsEndWithTheCodeOfTheRank) {
  auto options = script("echo x >> attempts$RANK; exit 5", 1);
  options.max_restarts = 2;
  EXPECT_EQ(run(options).exit_code, 5);
  EXPECT_EQ(file("attempts0"), "x\nx\nx\n");
}

TEST_F(LaunchTest, MistakeInTheConfigurationIsNotTriedAgain) {
  auto options = script("echo x >> attempts; exit 2", 1);
  options.max_restarts = 3;
  EXPECT_EQ(run(options).exit_code, 2);
  EXPECT_EQ(file("attempts"), "x\n");
}

TEST_F(LaunchTest, ProgramThatCannotStartIsNamed) {
  LaunchOptions options = script("");
  options.program = "/no/such/program";
  try {
    launch(options);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "cannot start /no/such/program: No such file or directory");
  }
}

TEST_F(LaunchTest, SignalIsForwardedAndTheRanksEndByThemselves) {
  auto options = script(
      "trap 'echo saved > saved$RANK; exit 143' TERM; touch ready$RANK\n"
      "[ $RANK = 0 ] && { until [ -e ready1 ]; do sleep 0.02; done; kill -TERM $PPID; }\n"
      "while :; do sleep 0.05; done");
  options.max_restarts = 3;
  EXPECT_EQ(run(options).exit_code, 143);
  EXPECT_EQ(file("saved0"), "saved\n");
  EXPECT_EQ(file("saved1"), "saved\n");
  EXPECT_FALSE(contains(err, "restarting")) << err;
}

TEST_F(LaunchTest, SecondSignalKillsAtOnce) {
  auto options = script(
      "trap '' INT; touch ready$RANK; until [ -e ready1 ] && [ -e ready0 ]; do sleep 0.02; done\n"
      "[ $RANK = 0 ] && { kill -INT $PPID; sleep 0.3; kill -INT $PPID; }\n"
      "while :; do sleep 1; done");
  options.grace = milliseconds(20000);
  EXPECT_EQ(run(options).exit_code, 137);
  EXPECT_LT(elapsed, milliseconds(15000));
}

TEST_F(LaunchTest, UserSignalsPassThrough) {
  const auto options = script(
      "trap 'exit 0' USR1; touch ready$RANK; until [ -e ready1 ] && [ -e ready0 ]; do sleep 0.02; done\n"
      "[ $RANK = 0 ] && kill -USR1 $PPID; while :; do sleep 0.05; done");
  EXPECT_EQ(run(options).exit_code, 0);
}

TEST_F(LaunchTest, NothingThatARankStartedIsLeft) {
  EXPECT_EQ(run(script("sleep 1000 > /dev/null 2>&1 & echo $! > pid", 1)).exit_code, 0);
  EXPECT_TRUE(gone_soon(std::stoi(file("pid"))));
}

TEST_F(LaunchTest, ProcessThatHoldsTheOutputOpenDoesNotDelayTheEnd) {
  EXPECT_EQ(run(script("setsid sleep 20 & echo $! > pid", 1)).exit_code, 0);
  EXPECT_LT(elapsed, milliseconds(15000));
  kill(std::stoi(file("pid")), SIGKILL);
}

TEST_F(LaunchTest, RanksDieWithAKilledLauncher) {
  const auto options = script("echo $$ > new$RANK; mv new$RANK pid$RANK; exec sleep 1000");
  const pid_t launcher = fork();
  if (launcher == 0) {
    launch(options);
    _exit(0);
  }
  const auto started = [&] { return fs::exists(folder / "pid0") && fs::exists(folder / "pid1"); };
  for (int i = 0; i < 2000 && !started(); ++i) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  kill(launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);
  ASSERT_TRUE(started());
  EXPECT_TRUE(gone_soon(std::stoi(file("pid0"))));
  EXPECT_TRUE(gone_soon(std::stoi(file("pid1"))));
}

TEST_F(LaunchTest, ImpossibleNodesAreRefused) {
  LaunchOptions options = script("exit 0");
  options.nodes = 2;
  EXPECT_THROW(launch(options), ConfigError);  // no endpoint
  options.endpoint = "localhost:0";
  EXPECT_THROW(launch(options), ConfigError);
  options.endpoint = "localhost:29500";
  options.node_rank = 2;
  EXPECT_THROW(launch(options), ConfigError);
  options.command.clear();
  EXPECT_THROW(launch(options), ConfigError);
}

}  // namespace
}  // namespace flowshard::launcher
