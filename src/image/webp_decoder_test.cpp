#include <gtest/gtest.h>
#include <webp/encode.h>

#include "core/error.h"
#include "image/changed_bytes.h"
#include "image/image.h"

namespace flowshard::image {
namespace {

using Bytes = std::vector<uint8_t>;

Bytes encode_lossless(const Bytes& pixels, int width, int height, bool alpha) {
  uint8_t* output = nullptr;
  const size_t size = alpha ? WebPEncodeLosslessRGBA(pixels.data(), width, height, width * 4, &output)
                            : WebPEncodeLosslessRGB(pixels.data(), width, height, width * 3, &output);
  Bytes bytes(output, output + size);
  WebPFree(output);
  return bytes;
}

TEST(WebpDecoder, LosslessPixelsAreExact) {
  Bytes pixels;
  for (int i = 0; i < 5 * 4 * 3; ++i) pixels.push_back(static_cast<uint8_t>(i * 4));
  const Image image = decode(encode_lossless(pixels, 5, 4, false), "x");
  EXPECT_EQ(image.width, 5);
  EXPECT_EQ(image.height, 4);
  EXPECT_EQ(image.pixels, pixels);
}

TEST(WebpDecoder, TransparentPixelsAreWhite) {
  const Bytes bytes = encode_lossless({0, 255, 0, 0, 10, 20, 30, 255}, 2, 1, true);
  EXPECT_EQ(decode(bytes, "x").pixels, (Bytes{255, 255, 255, 10, 20, 30}));
}

TEST(WebpDecoder, CutFilesAndSizesAboveTheLimitAreErrors) {
  const Bytes whole = encode_lossless(Bytes(16 * 16 * 3, 9), 16, 16, false);
  for (size_t size = 12; size < whole.size(); ++size) {
    EXPECT_THROW(decode({whole.data(), size}, "x"), DataError) << size;
  }
  EXPECT_THROW(decode(whole, "x", 255), DataError);
  EXPECT_NO_THROW(decode(whole, "x", 256));
}

TEST(WebpDecoder, ChangedBytesGiveAPictureOrADataError) {
  expect_picture_or_data_error(encode_lossless(Bytes(16 * 16 * 4, 9), 16, 16, true));
}

}  // namespace
}  // namespace flowshard::image
