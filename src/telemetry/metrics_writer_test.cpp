#include "telemetry/metrics_writer.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "core/error.h"
#include "core/temporary_folder.h"

namespace flowshard::telemetry {
namespace {

class MetricsWriterTest : public testing::Test {
 protected:
  std::string text() const {
    std::ostringstream content;
    content << std::ifstream(path_, std::ios::binary).rdbuf();
    return content.str();
  }

  void put_text(const std::string& content) const { std::ofstream(path_, std::ios::binary) << content; }

  std::vector<int64_t> steps() const {
    std::vector<int64_t> result;
    std::ifstream file(path_);
    for (std::string line; std::getline(file, line);) {
      result.push_back(nlohmann::json::parse(line).at("step").get<int64_t>());
    }
    return result;
  }

  void write_steps(int64_t first, int64_t last, int64_t resume_step = 0) const {
    MetricsWriter writer(path_, resume_step);
    for (int64_t step = first; step <= last; ++step) writer.write({.step = step, .samples_seen = step * 32});
  }

  const TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_ / "metrics.jsonl";
};

TEST_F(MetricsWriterTest, OneObjectALine) {
  {
    MetricsWriter writer(path_);
    writer.write({.step = 1,
                  .samples_seen = 32,
                  .loss = 0.75,
                  .grad_norm = 2.0,
                  .lr = 1e-5,
                  .step_seconds = 0.125,
                  .extras = {{"data_seconds", 0.5}}});
    EXPECT_EQ(text(), R"({"step":1,"samples_seen":32,"loss":0.75,"grad_norm":2.0,"lr":1e-05,)"
                      R"("step_seconds":0.125,"data_seconds":0.5})"
                      "\n");  // visible before the writer is gone
  }
}

TEST_F(MetricsWriterTest, TwoRunsDoNotWriteOneFile) {
  MetricsWriter first(path_);
  first.write({.step = 1});
  try {
    MetricsWriter second(path_);
    FAIL() << "a second writer";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.what(), path_.string() +
                                ": another run is writing it: wait for its end or choose another "
                                "run.output_dir");
  }
  first.write({.step = 2});
  EXPECT_EQ(steps(), (std::vector<int64_t>{1, 2}));
}

TEST_F(MetricsWriterTest, ARemovedFileOrFolderIsMadeAgain) {
  const std::filesystem::path path = folder_ / "run" / "metrics.jsonl";
  std::filesystem::create_directory(path.parent_path());
  const auto lines = [&] {
    std::ifstream file(path);
    return std::count(std::istreambuf_iterator<char>(file), {}, '\n');
  };
  MetricsWriter writer(path);
  writer.write({.step = 1});
  std::filesystem::remove(path);
  writer.write({.step = 2});
  writer.write({.step = 3});
  EXPECT_EQ(lines(), 2);
  std::filesystem::rename(path.parent_path(), folder_ / "moved");
  writer.write({.step = 4});
  EXPECT_EQ(lines(), 1);
  MetricsWriter(folder_ / "moved" / "metrics.jsonl", 3).write({.step = 4});  // nobody writes that any more
  EXPECT_THROW(MetricsWriter another(path), ConfigError);
}

TEST_F(MetricsWriterTest, ARunWhoseFileWasTakenOverEnds) {
  MetricsWriter first(path_);
  first.write({.step = 1});
  std::filesystem::remove(path_);
  MetricsWriter second(path_);
  EXPECT_THROW(first.write({.step = 2}), ConfigError);
  second.write({.step = 1});
  EXPECT_EQ(steps(), (std::vector<int64_t>{1}));
}

TEST_F(MetricsWriterTest, NumbersReadBackToTheSameBits) {
  std::mt19937_64 random(3);
  std::vector<double> numbers = {
      -0.0, 1.0, 0.1, 5e-324, 1.7976931348623157e308, 0.1f, 1e22, 123456789012345680.0};
  while (numbers.size() < 4000) {
    const double number = std::bit_cast<double>(random());
    if (std::isfinite(number)) numbers.push_back(number);
  }
  {
    MetricsWriter writer(path_);
    for (size_t i = 0; i < numbers.size(); ++i)
      writer.write({.step = static_cast<int64_t>(i) + 1, .loss = numbers[i]});
  }
  std::ifstream file(path_);
  std::string line;
  for (const double number : numbers) {
    ASSERT_TRUE(std::getline(file, line));
    const size_t begin = line.find("\"loss\":") + 7;
    const std::string printed = line.substr(begin, line.find(',', begin) - begin);
    const double back = std::strtod(printed.c_str(), nullptr);
    ASSERT_EQ(std::bit_cast<uint64_t>(back), std::bit_cast<uint64_t>(number)) << printed;
    // Readers that tell integers from numbers must see a number: an integer has no -0.
    ASSERT_NE(printed.find_first_of(".e"), std::string::npos) << printed;
  }
}

TEST_F(MetricsWriterTest, NonFiniteNumbersAreNullAndNamed) {
  const double infinity = std::numeric_limits<double>::infinity();
  MetricsWriter writer(path_);
  writer.write({.step = 1,
                .loss = std::numeric_limits<double>::quiet_NaN(),
                .grad_norm = infinity,
                .extras = {{"x", -infinity}}});
  const auto object = nlohmann::json::parse(text());
  EXPECT_TRUE(object.at("loss").is_null());
  EXPECT_TRUE(object.at("grad_norm").is_null());
  EXPECT_EQ(object.at("lr"), 0.0);
  EXPECT_EQ(object.at("non_finite"), (nlohmann::json{{"loss", "nan"}, {"grad_norm", "inf"}, {"x", "-inf"}}));
}

TEST_F(MetricsWriterTest, ANewRunStartsAnEmptyFile) {
  write_steps(1, 5);
  write_steps(1, 2);
  EXPECT_EQ(steps(), (std::vector<int64_t>{1, 2}));
}

TEST_F(MetricsWriterTest, AResumedRunDropsLaterSteps) {
  write_steps(1, 9);
  const std::string whole = text();
  { MetricsWriter writer(path_, 6); }
  EXPECT_EQ(steps(), (std::vector<int64_t>{1, 2, 3, 4, 5, 6}));
  write_steps(7, 9, 6);
  EXPECT_EQ(text(), whole);
}

TEST_F(MetricsWriterTest, AResumedRunContinuesWhatIsThere) {
  write_steps(1, 4);
  write_steps(11, 12, 10);  // records 5 to 10 were lost with the machine
  EXPECT_EQ(steps(), (std::vector<int64_t>{1, 2, 3, 4, 11, 12}));
}

TEST_F(MetricsWriterTest, ATornLastLineIsDropped) {
  write_steps(1, 3);
  const std::string whole = text();
  const size_t last_line = whole.rfind('\n', whole.size() - 2) + 1;
  for (size_t size = last_line; size < whole.size(); ++size) {
    put_text(whole.substr(0, size));
    write_steps(3, 3, 3);
    ASSERT_EQ(text(), whole) << "cut at " << size;
  }
  put_text(whole + std::string(4096, '\0'));  // what a crash of the machine may leave
  write_steps(4, 4, 3);
  EXPECT_EQ(steps(), (std::vector<int64_t>{1, 2, 3, 4}));
}

TEST_F(MetricsWriterTest, AKilledWriterLeavesWholeLines) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    MetricsWriter writer(path_);
    for (int64_t step = 1;; ++step) {
      writer.write({.step = step});
      if (step == 100 && ::write(ready[1], "x", 1) != 1) ::_exit(1);
    }
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
  write_steps(101, 102, 100);
  const std::vector<int64_t> written = steps();
  ASSERT_EQ(written.size(), 102u);
  EXPECT_EQ(written.back(), 102);
}

TEST_F(MetricsWriterTest, ForeignLinesAreNamedAndNothingIsLost) {
  const std::string record = R"({"step":1,"loss":0.5})"
                             "\n";
  for (const std::string line :
       {"hello\n", "{\"loss\":1}\n", "{\"step\":1}\n", "[1]\n", "\n", "{\"step\":1.5}\n"}) {
    put_text(record + line +
             R"({"step":9})"
             "\n");
    const std::string before = text();
    try {
      MetricsWriter writer(path_, 5);
      ADD_FAILURE() << "accepted " << line;
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find("metrics.jsonl:2:"), std::string::npos) << error.what();
    }
    EXPECT_EQ(text(), before);
  }
}

TEST_F(MetricsWriterTest, NoFolderIsADataError) {
  try {
    MetricsWriter writer(folder_ / "absent" / "metrics.jsonl");
    ADD_FAILURE() << "no error";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("No such file or directory"), std::string::npos) << error.what();
  }
}

TEST_F(MetricsWriterTest, NoSpaceLeavesWholeLines) {
  // A file size limit stands for a full disk: the last write is cut short, the one after it fails.
  MetricsWriter writer(path_);
  writer.write({.step = 1});
  const std::string first = text();
  const rlimit limit = {.rlim_cur = first.size() + 20, .rlim_max = RLIM_INFINITY};
  rlimit before = {};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &limit);
  EXPECT_THROW(writer.write({.step = 2}), DataError);
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  EXPECT_EQ(text(), first);
  writer.write({.step = 2});
  EXPECT_EQ(steps(), (std::vector<int64_t>{1, 2}));
}

}  // namespace
}  // namespace flowshard::telemetry
