// Random numbers as a pure function of (seed, index), the same on every machine and compiler: one stream for
// each sample or epoch, so that nothing depends on which rank or thread draws it, or when.
#pragma once

#include <cstdint>

namespace flowshard::dataset {

/// The finalizer of SplitMix64 (https://prng.di.unimi.it/splitmix64.c): a bijection that mixes every bit.
inline uint64_t mix_bits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

/// SplitMix64 started at a point of its own for each (seed, index).
class RandomStream {
 public:
  RandomStream(uint64_t seed, uint64_t index) : state_(mix_bits(mix_bits(seed + kStep) ^ (index * kStep))) {}

  uint64_t next() { return mix_bits(state_ += kStep); }

  /// In [0, 1), with 53 random bits.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

  /// In [0, bound). Biased by at most bound / 2^64.
  uint64_t below(uint64_t bound) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<uint64_t>(Wide{next()} * bound >> 64);
  }

 private:
  static constexpr uint64_t kStep = 0x9e3779b97f4a7c15U;
  uint64_t state_;
};

}  // namespace flowshard::dataset
