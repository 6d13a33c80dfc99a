#include "dataset/sample_order.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

namespace flowshard::dataset {
namespace {

std::vector<int64_t> epoch_of(int64_t num_samples, uint64_t seed, int64_t epoch) {
  const SampleOrder order(num_samples, seed);
  std::vector<int64_t> samples;
  for (int64_t i = 0; i < num_samples; ++i) {
    const SampleOrder::Place place = order.at(epoch * num_samples + i);
    EXPECT_EQ(place.epoch, epoch);
    samples.push_back(place.sample);
  }
  return samples;
}

TEST(SampleOrder, EveryEpochHoldsEverySampleOnce) {
  for (int64_t num_samples = 1; num_samples <= 300; ++num_samples) {
    for (const int64_t epoch : {0, 1, 7}) {
      const std::vector<int64_t> samples = epoch_of(num_samples, 5, epoch);
      const std::set<int64_t> distinct(samples.begin(), samples.end());
      ASSERT_EQ(static_cast<int64_t>(distinct.size()), num_samples);
      ASSERT_EQ(*distinct.begin(), 0);
      ASSERT_EQ(*distinct.rbegin(), num_samples - 1);
    }
  }
}

TEST(SampleOrder, DependsOnSeedAndEpoch) {
  std::set<std::vector<int64_t>> orders;
  for (const uint64_t seed : {42, 43}) {
    for (const int64_t epoch : {0, 1, 2}) orders.insert(epoch_of(100, seed, epoch));
  }
  EXPECT_EQ(orders.size(), 6U);
  EXPECT_EQ(epoch_of(100, 42, 1), epoch_of(100, 42, 1));
}

TEST(SampleOrder, EverySampleComesEquallyOftenToEveryPlace) {
  constexpr int kSamples = 7;
  constexpr int kEpochs = 7000;
  const SampleOrder order(kSamples, 3);
  std::map<std::pair<int64_t, int64_t>, int> counts;
  for (int64_t p = 0; p < int64_t{kSamples} * kEpochs; ++p) ++counts[{p % kSamples, order.at(p).sample}];
  EXPECT_EQ(counts.size(), 49U);
  for (const auto& [key, count] : counts)
    EXPECT_NEAR(count, kEpochs / kSamples, 150);  // 5 standard deviations
}

TEST(SampleOrder, NeighboursAreNoLongerNeighbours) {
  const std::vector<int64_t> samples = epoch_of(10'000, 0, 0);
  int close = 0;
  for (size_t i = 1; i < samples.size(); ++i) close += std::abs(samples[i] - samples[i - 1]) <= 10;
  EXPECT_LT(close, 60);  // by chance: 20
}

TEST(SampleOrder, PositionsOfHugeSetsAndLateEpochsAreValid) {
  const SampleOrder order(5'000'000'000, 1);
  const SampleOrder::Place place = order.at(4'000'000'000'000'000'001);
  EXPECT_EQ(place.epoch, 800'000'000);
  EXPECT_GE(place.sample, 0);
  EXPECT_LT(place.sample, 5'000'000'000);
}

}  // namespace
}  // namespace flowshard::dataset
