// Random numbers as a pure function of (seed, index), the same on every machine and compiler: one stream for
// each sample or epoch, so that nothing depends on which rank or thread draws it, or when.
#pragma once

#include <cstdint>

#include "core/mix_bits.h"

namespace flowshard::dataset {

/// SplitMix64 started at a point of its own for each (seed, index).
class RandomStream {
 public:
  RandomStream(uint64_t seed, uint64_t index)
      : state_(mix_bits(mix_bits(seed + kSplitMixStep) ^ (index * kSplitMixStep))) {}

  uint64_t next() { return mix_bits(state_ += kSplitMixStep); }

  /// In [0, 1), with 53 random bits.
  double uniform() { return unit_of(next()); }

  /// In [0, bound). Biased by at most bound / 2^64.
  uint64_t below(uint64_t bound) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<uint64_t>(Wide{next()} * bound >> 64);
  }

 private:
  uint64_t state_;
};

}  // namespace flowshard::dataset
