#include "core/error.h"

#include <gtest/gtest.h>

#include "core/error_context.h"

namespace flowshard {
namespace {

TEST(Error, ExitCodeIsThatOfTheThrownType) {
  EXPECT_EQ(exit_code_of(ConfigError("x")), ExitCode::kUsage);
  EXPECT_EQ(exit_code_of(CommError("x")), ExitCode::kCommunication);
  EXPECT_EQ(exit_code_of(DataError("x")), ExitCode::kData);
  EXPECT_EQ(exit_code_of(CheckpointError("x")), ExitCode::kCheckpoint);
  EXPECT_EQ(exit_code_of(std::bad_alloc()), ExitCode::kInternal);
}

TEST(Error, MessageIsFormatted) {
  EXPECT_STREQ(ConfigError("{} is not {}", "height", 16).what(), "height is not 16");
}

TEST(Error, FirstLineIsTheMessageWithoutTheBacktrace) {
  EXPECT_EQ(first_line("no such file\nframe #0: main"), "no such file");
  EXPECT_EQ(first_line("no such file"), "no such file");
}

TEST(Error, ContextKeepsTheType) {
  const auto within = [](const auto& error) {
    try {
      throw error;
    } catch (const Error&) {
      rethrow_within("step 3");
    }
  };
  EXPECT_THROW(within(ConfigError("x")), ConfigError);
  EXPECT_THROW(within(CommError("x")), CommError);
  EXPECT_THROW(within(CheckpointError("x")), CheckpointError);
  try {
    within(DataError("{{}} is bad"));
    FAIL();
  } catch (const DataError& error) {
    EXPECT_STREQ(error.what(), "step 3: {} is bad");
  }
}

TEST(Error, BrokenInvariantNamesFileAndMessage) {
  EXPECT_NO_THROW(check(true, "holds"));
  try {
    check(false, "one shard per rank");
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("error_test.cpp"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("one shard per rank"), std::string::npos);
  }
}

}  // namespace
}  // namespace flowshard
