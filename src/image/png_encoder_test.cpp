#include <gtest/gtest.h>
#include <png.h>

#include <string_view>

#include "core/error.h"
#include "image/image.h"

namespace flowshard::image {
namespace {

Image gradient(int width, int height) {
  Image image{.width = width, .height = height, .pixels = {}};
  for (int i = 0; i < width * height * 3; ++i) image.pixels.push_back(static_cast<uint8_t>(i * 7));
  return image;
}

bool contains(const std::vector<uint8_t>& bytes, std::string_view text) {
  return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()).find(text) !=
         std::string_view::npos;
}

TEST(PngEncoder, LibpngReadsBackTheSamePixels) {
  const Image image = gradient(13, 5);
  const std::vector<uint8_t> bytes = encode_png(image);
  png_image reader{};
  reader.version = PNG_IMAGE_VERSION;
  ASSERT_TRUE(png_image_begin_read_from_memory(&reader, bytes.data(), bytes.size()));
  reader.format = PNG_FORMAT_RGB;
  std::vector<uint8_t> pixels(PNG_IMAGE_SIZE(reader));
  ASSERT_TRUE(png_image_finish_read(&reader, nullptr, pixels.data(), 0, nullptr));
  EXPECT_EQ(reader.width, 13U);
  EXPECT_EQ(reader.height, 5U);
  EXPECT_EQ(pixels, image.pixels);
}

TEST(PngEncoder, TextIsInTheFileAsTextOrInternationalText) {
  const std::vector<uint8_t> bytes =
      encode_png(gradient(2, 2), {{"prompt", "a cat"}, {"title", "caf\xc3\xa9"}});
  EXPECT_TRUE(contains(bytes, std::string_view("tEXtprompt\0a cat", 16)));
  EXPECT_TRUE(contains(bytes, std::string_view("iTXttitle\0", 10)));
  EXPECT_TRUE(contains(bytes, "caf\xc3\xa9"));
}

TEST(PngEncoder, PixelsThatDoNotFitTheSizeAreABug) {
  Image image = gradient(4, 4);
  image.width = 5;
  EXPECT_THROW(encode_png(image), InternalError);
}

}  // namespace
}  // namespace flowshard::image
