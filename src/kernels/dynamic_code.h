// The dynamic 8-bit data type of https://arxiv.org/abs/2110.02861 for numbers whose block was divided by its
// largest magnitude. Seven decades share the codes; a decade nearer to 1 has twice as many. With n = 2^i
// (signed) or 2^(i + 1) (unsigned) magnitudes in decade i = 0 ... 6, they are the middles of n equal parts of
// [0.1, 1], in units of 10^(i - 6):
//   10^(i - 6) * (0.1 + 0.9 (j + 1/2) / n),  j = 0 ... n - 1
// and besides them 0 and 1. In ascending order this gives magnitude m = n + j (signed; 0 and 1 are m = 0 and
// 128), or n + j - 1 (unsigned; 0 and 255). An unsigned code is m; a signed one 127 + m or 127 - m, where the
// lowest stands for -1 in place of -0.993: so the largest magnitude of a block always has a code, and
// encoding what was decoded gives the same codes and scale. Plain constexpr code, for .cpp and .cu files.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace flowshard::kernels {

/// Ascending magnitudes and what finds the nearest one. The sign, the exponent and 7 bits of a float's
/// fraction leave at most two candidates, as no two midpoints of neighbours share them.
template <int kMagnitudes>
struct DynamicCode {
  static constexpr uint32_t kFirstPrefix = 0x3400;  // of 2^-23, which is nearer to 0 than to the next
  static constexpr uint32_t kLastPrefix = 0x3f80;   // of 1
  float magnitudes[kMagnitudes] = {};
  float midpoints[kMagnitudes] = {};  // between m and m + 1; infinite after the last
  uint8_t candidates[kLastPrefix - kFirstPrefix + 1] = {};

  constexpr DynamicCode() {
    constexpr int kUnsigned = kMagnitudes == 256;
    int m = 1;
    double decade = 1e-6;
    for (int i = 0; i < 7; ++i, decade *= 10) {
      const int n = 1 << (i + kUnsigned);
      for (int j = 0; j < n; ++j) magnitudes[m++] = static_cast<float>(decade * (0.1 + 0.9 * (j + 0.5) / n));
    }
    magnitudes[m] = 1;
    for (int k = 0; k < m; ++k) midpoints[k] = (magnitudes[k] + magnitudes[k + 1]) / 2;
    midpoints[m] = std::numeric_limits<float>::infinity();
    int candidate = 0;
    for (uint32_t prefix = kFirstPrefix; prefix <= kLastPrefix; ++prefix) {
      while (midpoints[candidate] < std::bit_cast<float>(prefix << 16)) ++candidate;
      candidates[prefix - kFirstPrefix] = static_cast<uint8_t>(candidate);
    }
  }

  /// The m nearest to `x` >= 0.
  constexpr int nearest(float x) const {
    const uint32_t prefix = std::bit_cast<uint32_t>(x) >> 16;
    const uint32_t bounded = prefix < kFirstPrefix  ? kFirstPrefix
                             : prefix > kLastPrefix ? kLastPrefix
                                                    : prefix;
    const int candidate = candidates[bounded - kFirstPrefix];
    return candidate + (x > midpoints[candidate]);
  }
};

struct SignedCode : DynamicCode<129> {
  static constexpr uint8_t kZero = 127;
  float values[256] = {};

  constexpr SignedCode() {
    for (int code = 0; code < 256; ++code)
      values[code] = code < kZero ? -magnitudes[kZero - code] : magnitudes[code - kZero];
    values[0] = -1;
  }
  constexpr uint8_t encode(float x) const {
    const int m = nearest(x < 0 ? -x : x);
    if (x >= 0) return static_cast<uint8_t>(kZero + m);
    if (m < 127) return static_cast<uint8_t>(kZero - m);
    return -x > (magnitudes[126] + 1) / 2 ? 0 : 1;
  }
  constexpr float decode(uint8_t code) const { return values[code]; }
};

/// Only 0 becomes 0: an update is divided by the root of such a number.
struct UnsignedCode : DynamicCode<256> {
  static constexpr uint8_t kZero = 0;
  constexpr uint8_t encode(float x) const {
    const int m = nearest(x);
    return static_cast<uint8_t>(m == 0 && x > 0 ? 1 : m);
  }
  constexpr float decode(uint8_t code) const { return magnitudes[code]; }
};

/// Elements that share a scale, their largest magnitude.
constexpr int64_t kCodeBlock = 256;

/// By what a block is multiplied before it is encoded. One too small for it becomes zeros.
constexpr float inverse_scale(float largest) {
  return largest < std::numeric_limits<float>::min() ? 0 : 1 / largest;
}

}  // namespace flowshard::kernels
