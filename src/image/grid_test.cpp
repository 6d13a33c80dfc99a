#include "image/grid.h"

#include <gtest/gtest.h>

namespace flowshard::image {
namespace {

Image plain(int width, int height, uint8_t value) {
  return {width, height, std::vector<uint8_t>(static_cast<size_t>(width * height * 3), value)};
}

TEST(Grid, PlacesPicturesRowByRowOnWhite) {
  const Image sheet = grid({plain(2, 1, 10), plain(1, 2, 20), plain(2, 2, 30)}, /*columns=*/2, /*border=*/1);
  ASSERT_EQ(sheet.width, 2 * 3 + 1);
  ASSERT_EQ(sheet.height, 2 * 3 + 1);
  const auto at = [&](int x, int y) {
    return static_cast<int>(sheet.pixels[static_cast<size_t>(y * sheet.width + x) * 3]);
  };
  EXPECT_EQ(at(1, 1), 10);
  EXPECT_EQ(at(2, 1), 10);
  EXPECT_EQ(at(1, 2), 255);  // the first picture is one row high
  EXPECT_EQ(at(4, 2), 20);
  EXPECT_EQ(at(2, 5), 30);
  EXPECT_EQ(at(5, 5), 255);  // no fourth picture
  EXPECT_EQ(at(0, 0), 255);
}

}  // namespace
}  // namespace flowshard::image
