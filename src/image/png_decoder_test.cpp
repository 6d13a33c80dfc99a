#include <gtest/gtest.h>
#include <png.h>
#include <zlib.h>

#include <string>

#include "core/error.h"
#include "image/changed_bytes.h"
#include "image/image.h"

namespace flowshard::image {
namespace {

using Bytes = std::vector<uint8_t>;

void append_number(Bytes& bytes, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<uint8_t>(value >> shift));
}

void append_chunk(Bytes& png, const std::string& name, const Bytes& data) {
  append_number(png, static_cast<uint32_t>(data.size()));
  Bytes body(name.begin(), name.end());
  body.insert(body.end(), data.begin(), data.end());
  png.insert(png.end(), body.begin(), body.end());
  append_number(png, static_cast<uint32_t>(crc32(0, body.data(), static_cast<uInt>(body.size()))));
}

Bytes deflated(const Bytes& data) {
  Bytes result(compressBound(data.size()));
  uLongf size = result.size();
  compress(result.data(), &size, data.data(), data.size());
  result.resize(size);
  return result;
}

struct Chunk {
  std::string name;
  Bytes data;
};

// A PNG put together by the specification (https://www.w3.org/TR/png): `scanlines` without filter bytes.
Bytes make_png(uint32_t width, uint32_t height, uint8_t bit_depth, uint8_t color_type, const Bytes& scanlines,
               const std::vector<Chunk>& chunks = {}) {
  Bytes png{0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
  Bytes header;
  append_number(header, width);
  append_number(header, height);
  header.insert(header.end(), {bit_depth, color_type, 0, 0, 0});
  append_chunk(png, "IHDR", header);
  for (const Chunk& chunk : chunks) append_chunk(png, chunk.name, chunk.data);
  Bytes filtered;
  for (uint32_t y = 0; y < height && !scanlines.empty(); ++y) {
    const size_t row = scanlines.size() / height;
    filtered.push_back(0);
    filtered.insert(filtered.end(), scanlines.begin() + y * row, scanlines.begin() + (y + 1) * row);
  }
  append_chunk(png, "IDAT", deflated(filtered));
  append_chunk(png, "IEND", {});
  return png;
}

constexpr uint8_t kGrey = 0;
constexpr uint8_t kRgb = 2;
constexpr uint8_t kPalette = 3;
constexpr uint8_t kGreyAlpha = 4;
constexpr uint8_t kRgba = 6;

std::string error_of(const Bytes& bytes) {
  try {
    decode(bytes, "a.png");
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

TEST(PngDecoder, ReadsBackWhatTheEncoderWrote) {
  Image image{.width = 7, .height = 3, .pixels = {}};
  for (int i = 0; i < 7 * 3 * 3; ++i) image.pixels.push_back(static_cast<uint8_t>(i * 5));
  const Image read = decode(encode_png(image, {{"prompt", "x"}}), "x");
  EXPECT_EQ(read.width, 7);
  EXPECT_EQ(read.height, 3);
  EXPECT_EQ(read.pixels, image.pixels);
}

TEST(PngDecoder, TransparentPixelsAreWhiteInEveryForm) {
  const Bytes rgba = make_png(2, 1, 8, kRgba, {0, 255, 0, 0, 10, 20, 30, 255});
  EXPECT_EQ(decode(rgba, "x").pixels, (Bytes{255, 255, 255, 10, 20, 30}));
  const Bytes palette =
      make_png(2, 1, 8, kPalette, {0, 1}, {{"PLTE", {0, 255, 0, 10, 20, 30}}, {"tRNS", {0, 255}}});
  EXPECT_EQ(decode(palette, "x").pixels, (Bytes{255, 255, 255, 10, 20, 30}));
  const Bytes grey_alpha = make_png(2, 1, 8, kGreyAlpha, {40, 0, 50, 255});
  EXPECT_EQ(decode(grey_alpha, "x").pixels, (Bytes{255, 255, 255, 50, 50, 50}));
  const Bytes keyed = make_png(2, 1, 8, kRgb, {0, 255, 0, 10, 20, 30}, {{"tRNS", {0, 0, 0, 255, 0, 0}}});
  EXPECT_EQ(decode(keyed, "x").pixels, (Bytes{255, 255, 255, 10, 20, 30}));
  const Bytes half = make_png(1, 1, 8, kRgba, {0, 100, 200, 128});
  EXPECT_EQ(decode(half, "x").pixels, (Bytes{127, 177, 227}));  // 255 - (255 - c) * 128 / 255
}

TEST(PngDecoder, SamplesOfOneAndSixteenBitsBecomeEight) {
  EXPECT_EQ(decode(make_png(3, 1, 1, kGrey, {0b10100000}), "x").pixels,
            (Bytes{255, 255, 255, 0, 0, 0, 255, 255, 255}));
  // 0x7fff / 257 = 127.498, 0x8000 / 257 = 127.502, 0x01ff / 257 = 1.988
  EXPECT_EQ(decode(make_png(1, 1, 16, kRgb, {0x7f, 0xff, 0x80, 0x00, 0x01, 0xff}), "x").pixels,
            (Bytes{127, 128, 2}));
}

TEST(PngDecoder, AnEmptySizeIsRefused) {
  EXPECT_TRUE(error_of(make_png(0, 4, 8, kRgb, {})).starts_with("a.png: "));
  EXPECT_TRUE(error_of(make_png(4, 0, 8, kRgb, {})).starts_with("a.png: "));
  EXPECT_EQ(error_of(make_png(1, 1, 8, kRgb, {1, 2, 3})), "");
}

TEST(PngDecoder, ASizeAboveTheLimitIsRefusedFromTheHeader) {
  EXPECT_EQ(error_of(make_png(30000, 30000, 1, kGrey, {})),
            "a.png: 30000 x 30000 pixels are above the limit of 178956970");
}

TEST(PngDecoder, AnOversizedSideChunkIsIgnored) {
  const Bytes bomb = deflated(Bytes(50'000'000, 'a'));
  for (const std::string name : {"zTXt", "iCCP"}) {
    Bytes data{'n', 'a', 'm', 'e', 0, 0};
    data.insert(data.end(), bomb.begin(), bomb.end());
    EXPECT_EQ(decode(make_png(1, 1, 8, kRgb, {1, 2, 3}, {{name, data}}), "x").pixels, (Bytes{1, 2, 3}))
        << name;
  }
}

TEST(PngDecoder, CutAndDamagedFilesAreErrors) {
  const Bytes whole = make_png(4, 4, 8, kRgb, Bytes(48, 7));
  for (size_t size = 8; size < whole.size(); ++size) {
    EXPECT_TRUE(error_of({whole.begin(), whole.begin() + static_cast<int64_t>(size)}).starts_with("a.png: "))
        << size;
  }
  Bytes damaged = whole;
  damaged[45] ^= 1;  // in the pixel data
  EXPECT_NE(error_of(damaged), "");
}

TEST(PngDecoder, ChangedBytesGiveAPictureOrADataError) {
  expect_picture_or_data_error(
      make_png(8, 8, 8, kPalette, Bytes(64, 1), {{"PLTE", {0, 255, 0, 10, 20, 30}}, {"tRNS", {0, 9}}}));
}

}  // namespace
}  // namespace flowshard::image
