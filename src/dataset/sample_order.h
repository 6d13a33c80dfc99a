// Which sample stands at which position of the endless training sequence, computed and not stored.
#pragma once

#include <cstdint>

namespace flowshard::dataset {

/// Position p is place p mod n of epoch p / n. Every epoch is a pseudo-random permutation of the n samples
/// that depends on (seed, epoch) alone: a Feistel network over the next power of four, walked until it lands
/// below n (Black and Rogaway, https://doi.org/10.1007/3-540-45760-7_9). Any thread may call it.
class SampleOrder {
 public:
  SampleOrder(int64_t num_samples, uint64_t seed);

  struct Place {
    int64_t epoch;
    int64_t sample;
  };
  Place at(int64_t position) const;

 private:
  uint64_t permute_once(uint64_t value, uint64_t epoch) const;

  int64_t num_samples_;
  uint64_t seed_;
  int half_bits_ = 1;
};

}  // namespace flowshard::dataset
