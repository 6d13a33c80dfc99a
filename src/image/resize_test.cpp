#include "image/resize.h"

#include <gtest/gtest.h>

#include <cmath>

namespace flowshard::image {
namespace {

// The value of pixel (x, y), the same in all channels.
template <typename Function>
Image make_image(int width, int height, Function value) {
  Image image{.width = width, .height = height, .pixels = {}};
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x)
      image.pixels.insert(image.pixels.end(), 3, static_cast<uint8_t>(value(x, y)));
  }
  return image;
}

TEST(Resize, APictureOfTheWantedSizeIsUnchanged) {
  const Image image = make_image(9, 5, [](int x, int y) { return x * 20 + y; });
  EXPECT_EQ(crop_and_resize(image, 9, 5).pixels, image.pixels);
}

TEST(Resize, TakesTheMiddleOfTheLongerSide) {
  // Only the middle third is bright; a square about the centre of 90 x 30 is exactly that third.
  const Image wide = make_image(90, 30, [](int x, int) { return x >= 30 && x < 60 ? 200 : 0; });
  const Image square = crop_and_resize(wide, 30, 30);
  EXPECT_EQ(square.width, 30);
  EXPECT_EQ(square.height, 30);
  for (const uint8_t pixel : square.pixels) EXPECT_EQ(pixel, 200);
  const Image tall = make_image(30, 90, [](int, int y) { return y >= 30 && y < 60 ? 200 : 0; });
  for (const uint8_t pixel : crop_and_resize(tall, 30, 30).pixels) EXPECT_EQ(pixel, 200);
}

TEST(Resize, ReductionAveragesWhatItSkips) {
  // Stripes of one pixel: sampling without a widened kernel would return black or white.
  const Image stripes = make_image(128, 128, [](int x, int) { return x % 2 * 255; });
  const Image small = crop_and_resize(stripes, 16, 16);
  for (int x = 2; x < 14; ++x) EXPECT_NEAR(small.pixels[(8 * 16 + x) * 3], 127.5, 1);
}

TEST(Resize, ARampStaysARamp) {
  const Image ramp = make_image(64, 8, [](int x, int) { return x * 4; });
  const Image doubled = crop_and_resize(ramp, 128, 16);
  for (int x = 8; x < 120; ++x)
    EXPECT_NEAR(doubled.pixels[(8 * 128 + x) * 3], ((x + 0.5) / 2 - 0.5) * 4, 0.51);
}

TEST(Resize, ExtremeShapesFit) {
  for (const auto& [width, height] : {std::pair{1, 1}, {1, 5000}, {5000, 1}}) {
    const Image resized = crop_and_resize(make_image(width, height, [](int, int) { return 77; }), 32, 48);
    ASSERT_EQ(resized.pixels.size(), size_t{32} * 48 * 3);
    for (const uint8_t pixel : resized.pixels) EXPECT_EQ(pixel, 77);
  }
}

}  // namespace
}  // namespace flowshard::image
