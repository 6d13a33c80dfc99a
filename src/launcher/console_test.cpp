#include "launcher/console.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

namespace flowshard::launcher {
namespace {

using Stream = Console::Stream;

// What is written to one end of a pipe or a raw terminal.
class Sink {
 public:
  explicit Sink(bool terminal = false) {
    int ends[2];
    termios raw{};
    cfmakeraw(&raw);
    EXPECT_EQ(terminal ? openpty(&ends[0], &ends[1], nullptr, &raw, nullptr) : pipe(ends), 0);
    read_ = ends[0];
    write = ends[1];
    fcntl(read_, F_SETFL, O_NONBLOCK);
  }
  ~Sink() {
    close(read_);
    close(write);
  }
  std::string take() {
    char bytes[4096];
    const ssize_t count = read(read_, bytes, sizeof(bytes));
    return {bytes, count > 0 ? static_cast<size_t>(count) : 0};
  }
  int write = -1;

 private:
  int read_ = -1;
};

TEST(RankStream, LinesStayWholeWhateverThePieces) {
  Sink out, err;
  Console console(out.write, err.write);
  RankStream zero(console, Stream::kOut, "", false);
  RankStream one(console, Stream::kOut, "[rank 1] ", false);
  zero.feed("step ");
  one.feed("loss 0.5\nst");
  zero.feed("1\n");
  one.feed("ep 2");
  one.end();
  EXPECT_EQ(out.take(), "[rank 1] loss 0.5\nstep 1\n[rank 1] step 2\n");
  EXPECT_EQ(one.last_line(), "step 2");
  EXPECT_EQ(err.take(), "");
}

TEST(RankStream, ProgressBarOfAnotherRankIsItsLastState) {
  Sink out, err;
  Console console(out.write, err.write);
  RankStream one(console, Stream::kErr, "[rank 1] ", false);
  one.feed("\r10 %\r50 %\r100 %\nwindows\r\n");
  EXPECT_EQ(err.take(), "[rank 1] 100 %\n[rank 1] windows\n");
}

TEST(RankStream, LastLineIsTheLastThatSaysSomething) {
  Sink out, err;
  Console console(out.write, err.write);
  RankStream zero(console, Stream::kErr, "", false);
  zero.feed("no space left\n\n");
  EXPECT_EQ(zero.last_line(), "no space left");
}

TEST(RankStream, EndlessLineIsPassedOnInPieces) {
  Sink out, err;
  Console console(open("/dev/null", O_WRONLY | O_CLOEXEC), err.write);
  RankStream zero(console, Stream::kOut, "", false);
  zero.feed(std::string(3 << 20, 'x'));
  EXPECT_EQ(zero.last_line().size(), 1u << 20);
}

TEST(Console, ProgressBarOfRankZeroStaysBelowTheLinesOfOthers) {
  Sink terminal(true);
  Console console(terminal.write, terminal.write);
  EXPECT_TRUE(console.is_terminal(Stream::kErr));
  RankStream zero(console, Stream::kErr, "", true);
  RankStream one(console, Stream::kOut, "[rank 1] ", false);
  zero.feed("\rstep 1/9");
  one.feed("slow disk\n");
  zero.feed("\rstep 2/9\n");
  one.feed("done\n");
  EXPECT_EQ(terminal.take(),
            "\rstep 1/9"
            "\r\x1b[K[rank 1] slow disk\nstep 1/9"
            "\rstep 2/9\n"
            "[rank 1] done\n");
}

}  // namespace
}  // namespace flowshard::launcher
