// The hash behind everything that is random but must come out the same everywhere: sample order, noise,
// caption dropout, the shapes data set.
#pragma once

#include <cstdint>

namespace flowshard {

/// The step of SplitMix64 (https://prng.di.unimi.it/splitmix64.c): the golden ratio in 64 bits.
constexpr uint64_t kSplitMixStep = 0x9e3779b97f4a7c15U;

/// The finalizer of SplitMix64: a bijection that mixes every bit.
constexpr uint64_t mix_bits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

/// A number in [0, 1) of the first 53 bits.
constexpr double unit_of(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

}  // namespace flowshard
