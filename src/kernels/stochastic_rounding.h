// Stochastic rounding of fp32 to bf16: up with the probability that makes it unbiased, so that updates
// smaller than half a step of bf16 are not lost but made now and then. The random bits depend on seed, step
// and the global index of the element alone: the same on CPU and GPU and for every sharding. Plain constexpr
// code, for .cpp and .cu files.
#pragma once

#include <bit>
#include <cstdint>

#include "core/mix_bits.h"

namespace flowshard::kernels {

/// What the random bits of one step start from.
constexpr uint64_t rounding_key(uint64_t seed, int64_t step) {
  return mix_bits(mix_bits(seed + kSplitMixStep) + static_cast<uint64_t>(step) * kSplitMixStep);
}

/// The random bits of elements `index` ... `index` + 3, 16 each from the lowest on. Elements 4 k ... 4 k + 3
/// share the k-th word of SplitMix64.
constexpr uint64_t rounding_bits(uint64_t key, int64_t index) {
  const auto word = [key](uint64_t k) { return mix_bits(key + k * kSplitMixStep); };
  const uint64_t k = static_cast<uint64_t>(index) / 4, shift = 16 * (static_cast<uint64_t>(index) % 4);
  return shift == 0 ? word(k) : word(k) >> shift | word(k + 1) << (64 - shift);
}

/// The bf16 neighbour of `value`, as bits: the one away from zero with the probability (distance to the
/// other) / (distance of the two), in steps of 2^-16. What bf16 can represent stays.
constexpr uint16_t round_to_bf16(float value, uint16_t random_bits) {
  if (value != value) return 0x7fc0;
  return static_cast<uint16_t>((std::bit_cast<uint32_t>(value) + random_bits) >> 16);
}

}  // namespace flowshard::kernels
