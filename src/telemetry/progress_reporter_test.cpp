#include "telemetry/progress_reporter.h"

#include <gtest/gtest.h>

#include <limits>
#include <sstream>

namespace flowshard::telemetry {
namespace {

StepRecord record(int64_t step, double step_seconds) {
  return {.step = step, .loss = 0.5, .grad_norm = 1.25, .lr = 2e-3, .step_seconds = step_seconds};
}

TEST(ProgressReporter, PlainLinesInALog) {
  std::ostringstream out;
  {
    ProgressReporter progress(out, {.num_steps = 25, .log_every_steps = 10});
    for (int64_t step = 1; step <= 25; ++step) progress.update(record(step, 0.25));
    progress.message("saved");
  }
  EXPECT_EQ(out.str(),
            "step 1/25   4%  loss 0.5000  grad_norm 1.250  lr 2.00e-03  4.0 steps/s  ends in 6s\n"
            "step 10/25  40%  loss 0.5000  grad_norm 1.250  lr 2.00e-03  4.0 steps/s  ends in 4s\n"
            "step 20/25  80%  loss 0.5000  grad_norm 1.250  lr 2.00e-03  4.0 steps/s  ends in 1s\n"
            "step 25/25 100%  loss 0.5000  grad_norm 1.250  lr 2.00e-03  4.0 steps/s  ends in 0s\n"
            "saved\n");
}

TEST(ProgressReporter, LongTimesAndNonFiniteLoss) {
  std::ostringstream out;
  ProgressReporter progress(out, {.num_steps = 1001, .log_every_steps = 1});
  StepRecord first = record(1, 5.0);
  first.loss = std::numeric_limits<double>::quiet_NaN();
  progress.update(first);
  EXPECT_EQ(out.str(),
            "step 1/1001   0%  loss nan  grad_norm 1.250  lr 2.00e-03  5.00 s/step  ends in 1h 23m\n");
}

TEST(ProgressReporter, OneLineOnATerminal) {
  std::ostringstream out;
  {
    ProgressReporter progress(out, {.num_steps = 100, .columns = 13});
    progress.update(record(1, 0.04));  // the first is drawn
    progress.update(record(2, 0.04));
    progress.update(record(3, 0.04));
    progress.update(record(4, 0.04));  // 0.12 s later: drawn
    progress.message("saved");
    progress.update(record(100, 0.01));  // the last is drawn
  }
  EXPECT_EQ(out.str(),
            "\rstep 1/100  \x1b[K"
            "\rstep 4/100  \x1b[K"
            "\r\x1b[Ksaved\n"
            "\rstep 4/100  \x1b[K"
            "\rstep 100/100\x1b[K\n");
}

TEST(ProgressReporter, TheRateFollowsAChange) {
  std::ostringstream out;
  ProgressReporter progress(out, {.num_steps = 400, .log_every_steps = 200});
  for (int64_t step = 1; step <= 200; ++step) progress.update(record(step, step <= 40 ? 0.1 : 2.0));
  EXPECT_NE(out.str().find("step 200/400  50%"), std::string::npos);
  EXPECT_NE(out.str().find("1.99 s/step  ends in 6m 3"), std::string::npos) << out.str();
}

TEST(ProgressReporter, ALogByTheClock) {
  std::ostringstream out;
  ProgressReporter progress(out, {.num_steps = 10, .log_every_seconds = 30});
  for (int64_t step = 1; step <= 10; ++step) progress.update(step, 8.0, "image 1/1");
  EXPECT_EQ(out.str(),
            "step 4/10  40%  image 1/1  8.00 s/step  ends in 48s\n"
            "step 8/10  80%  image 1/1  8.00 s/step  ends in 16s\n");
}

TEST(ProgressReporter, HiddenUntilTheNextStep) {
  std::ostringstream out;
  {
    ProgressReporter progress(out, {.num_steps = 100, .columns = 13});
    progress.update(1, 1.0, "");
    progress.hide();
    progress.hide();
    progress.update(2, 1.0, "");
    progress.hide();
  }
  EXPECT_EQ(out.str(), "\rstep 1/100  \x1b[K\r\x1b[K\rstep 2/100  \x1b[K\r\x1b[K");
}

TEST(ProgressReporter, NothingIsWrittenWithoutAStep) {
  std::ostringstream out;
  { ProgressReporter progress(out, {.num_steps = 10, .columns = 80}); }
  EXPECT_EQ(out.str(), "");
}

}  // namespace
}  // namespace flowshard::telemetry
