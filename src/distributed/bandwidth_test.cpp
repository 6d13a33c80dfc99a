#include "distributed/bandwidth.h"

#include <gtest/gtest.h>

#include <thread>

#include "core/error.h"
#include "distributed/thread_ranks.h"

namespace flowshard::distributed {
namespace {

constexpr std::chrono::seconds kTimeout(20);

/// A group whose operations take as long as it is told.
class SlowGroup : public ProcessGroup {
 public:
  SlowGroup(int world_size, std::chrono::milliseconds time) : world_size_(world_size), time_(time) {}
  int rank() const override { return 0; }
  int world_size() const override { return world_size_; }
  std::unique_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input) override {
    output.view({world_size_, -1}).copy_(input.expand({world_size_, input.numel()}));
    return work();
  }
  std::unique_ptr<Work> reduce_scatter_sum(const at::Tensor& output, const at::Tensor& input) override {
    output.copy_(input.slice(0, 0, output.numel()));
    return work();
  }
  std::unique_ptr<Work> all_reduce_sum(const at::Tensor&) override { return work(); }
  std::unique_ptr<Work> broadcast(const at::Tensor&, int) override { return work(); }
  void barrier() override {}
  std::unique_ptr<ProcessGroup> subgroup(const std::vector<int>&, const std::string&) override {
    return nullptr;
  }

 private:
  struct Sleep : Work {
    explicit Sleep(std::chrono::milliseconds time) : time(time) {}
    void wait() override { std::this_thread::sleep_for(time); }
    std::chrono::milliseconds time;
  };
  std::unique_ptr<Work> work() const { return std::make_unique<Sleep>(time_); }
  int world_size_;
  std::chrono::milliseconds time_;
};

TEST(Bandwidth, IsBytesOverTime) {
  SlowGroup ranks(4, std::chrono::milliseconds(20));
  const std::vector<Bandwidth> results =
      measure_collectives(ranks, {.dtype = at::kFloat, .sizes = {1'000'000}, .repeats = 3});
  ASSERT_EQ(results.size(), 3u);
  const double factors[] = {0.75, 0.75, 1.5};
  const char* names[] = {"all_gather", "reduce_scatter", "all_reduce"};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(results[i].operation, names[i]);
    EXPECT_EQ(results[i].bytes, 1'000'000);
    EXPECT_GE(results[i].seconds, 0.02);
    EXPECT_LE(results[i].seconds_low, results[i].seconds);
    EXPECT_GE(results[i].seconds_high, results[i].seconds);
    EXPECT_DOUBLE_EQ(results[i].algorithm_bytes_per_second(), 1e6 / results[i].seconds);
    EXPECT_DOUBLE_EQ(results[i].bus_bytes_per_second(), factors[i] * 1e6 / results[i].seconds);
  }
}

TEST(Bandwidth, IsTheSameOnEveryRankAndTellsEachResultAtOnce) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    std::vector<std::vector<double>> seconds(3);
    run_thread_ranks(3, kTimeout, [&](ProcessGroup& ranks) {
      int told = 0;
      const std::vector<Bandwidth> results = measure_collectives(
          ranks,
          {.dtype = dtype, .sizes = {1, 1000, 100'000}, .repeats = 2, .on_result = [&](const Bandwidth&) {
             ++told;
           }});
      EXPECT_EQ(told, 9);
      for (const Bandwidth& result : results) {
        EXPECT_EQ(result.bytes % (3 * static_cast<int64_t>(at::elementSize(dtype))), 0);
        seconds[static_cast<size_t>(ranks.rank())].push_back(result.seconds);
      }
    });
    EXPECT_EQ(seconds[0].size(), 9u);
    EXPECT_EQ(seconds[1], seconds[0]);
    EXPECT_EQ(seconds[2], seconds[0]);
  }
}

TEST(Bandwidth, RankThatLeavesIsAnErrorOfTheOthers) {
  const auto measure_on_first = [](ProcessGroup& ranks) {
    if (ranks.rank() == 1) return;
    measure_collectives(ranks, {.sizes = {1000}, .repeats = 2});
  };
  EXPECT_THROW(run_thread_ranks(2, std::chrono::seconds(2), measure_on_first), CommError);
}

}  // namespace
}  // namespace flowshard::distributed
