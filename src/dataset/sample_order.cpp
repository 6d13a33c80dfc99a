#include "dataset/sample_order.h"

#include <utility>

#include "core/error.h"
#include "core/mix_bits.h"
#include "dataset/random_stream.h"

namespace flowshard::dataset {

namespace {
constexpr int kRounds = 6;
}

SampleOrder::SampleOrder(int64_t num_samples, uint64_t seed) : num_samples_(num_samples), seed_(seed) {
  check(num_samples > 0, "an order of no samples");
  while (uint64_t{1} << (2 * half_bits_) < static_cast<uint64_t>(num_samples)) ++half_bits_;
}

uint64_t SampleOrder::permute_once(uint64_t value, uint64_t epoch) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  RandomStream keys(seed_, epoch);
  uint64_t left = value >> half_bits_;
  uint64_t right = value & mask;
  for (int round = 0; round < kRounds; ++round) {
    left ^= mix_bits(keys.next() ^ right) & mask;
    std::swap(left, right);
  }
  return left << half_bits_ | right;
}

SampleOrder::Place SampleOrder::at(int64_t position) const {
  check(position >= 0, "a position below zero");
  const int64_t epoch = position / num_samples_;
  auto value = static_cast<uint64_t>(position % num_samples_);
  do {
    value = permute_once(value, static_cast<uint64_t>(epoch));
  } while (value >= static_cast<uint64_t>(num_samples_));
  return {.epoch = epoch, .sample = static_cast<int64_t>(value)};
}

}  // namespace flowshard::dataset
