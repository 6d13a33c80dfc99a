// For tests of the decoders: whatever is done to a file, it is a picture or a DataError.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "core/error.h"
#include "image/image.h"

namespace flowshard::image {

/// Decodes `whole` 3000 times with three bytes changed.
inline void expect_picture_or_data_error(const std::vector<uint8_t>& whole) {
  std::mt19937 random(1);
  for (int i = 0; i < 3000; ++i) {
    std::vector<uint8_t> bytes = whole;
    for (int change = 0; change < 3; ++change)
      bytes[random() % bytes.size()] = static_cast<uint8_t>(random());
    try {
      const Image image = decode(bytes, "x", 1'000'000);
      EXPECT_EQ(image.pixels.size(), size_t{3} * image.width * image.height);
    } catch (const DataError&) {
      continue;
    }
  }
}

}  // namespace flowshard::image
