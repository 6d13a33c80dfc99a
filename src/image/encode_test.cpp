#include "image/encode.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"

namespace flowshard::image {
namespace {

constexpr Format kFormats[] = {Format::kPng, Format::kJpeg, Format::kWebp};

Image waves(int width, int height) {
  Image image{.width = width, .height = height, .pixels = {}};
  for (int i = 0; i < width * height; ++i) {
    const double x = i % width, y = i / width;
    for (int c = 0; c < 3; ++c) {
      image.pixels.push_back(static_cast<uint8_t>(127 + 100 * std::sin(x / (5 + 3 * c)) * std::cos(y / 7)));
    }
  }
  return image;
}

int largest_difference(const Image& a, const Image& b) {
  EXPECT_EQ(a.pixels.size(), b.pixels.size());
  int largest = 0;
  for (size_t i = 0; i < a.pixels.size(); ++i)
    largest = std::max(largest, std::abs(a.pixels[i] - b.pixels[i]));
  return largest;
}

TEST(Encode, EveryFormatComesBack) {
  const Image image = waves(37, 21);
  EXPECT_EQ(largest_difference(decode(encode(image, Format::kPng), "png"), image), 0);
  EXPECT_EQ(largest_difference(decode(encode(image, Format::kWebp, {.quality = 100}), "webp"), image), 0);
  EXPECT_LE(largest_difference(decode(encode(image, Format::kJpeg), "jpeg"), image), 8);
  EXPECT_LE(largest_difference(decode(encode(image, Format::kWebp), "webp"), image), 24);
}

TEST(Encode, LowerQualityIsSmaller) {
  const Image image = waves(64, 64);
  for (const Format format : {Format::kJpeg, Format::kWebp}) {
    EXPECT_LT(encode(image, format, {.quality = 20}).size(), encode(image, format, {.quality = 95}).size());
  }
}

TEST(Encode, DescriptionsComeBackWhole) {
  for (const Format format : kFormats) {
    const size_t longest = format == Format::kJpeg ? max_description_bytes(format) : 300'000;
    for (const size_t size : {size_t{1}, size_t{3}, size_t{4}, size_t{5}, size_t{1000}, longest}) {
      const std::string text(size, 'a');
      const auto bytes = encode(waves(9, 5), format, {.description = text});
      EXPECT_EQ(read_description(bytes, "x"), text) << size;
    }
    EXPECT_EQ(read_description(encode(waves(9, 5), format), "x"), "");
  }
  const std::string accents = "caf\xc3\xa9 \xe6\x9d\xb1\xe4\xba\xac";
  EXPECT_EQ(read_description(encode(waves(9, 5), Format::kPng, {.description = accents}), "x"), accents);
}

TEST(Encode, TooLongADescriptionIsABug) {
  const std::string text(max_description_bytes(Format::kJpeg) + 1, 'a');
  EXPECT_THROW(encode(waves(9, 5), Format::kJpeg, {.description = text}), InternalError);
}

TEST(Encode, ADescriptionOfACutFileIsNotRead) {
  for (const Format format : kFormats) {
    auto bytes = encode(waves(64, 64), format, {.description = "{}"});
    bytes.resize(bytes.size() - 20);
    EXPECT_THROW(read_description(bytes, "x"), DataError);
  }
}

TEST(Encode, ChangedBytesAreReadOrRefused) {
  for (const Format format : kFormats) {
    const auto whole = encode(waves(16, 16), format, {.description = "some words about it"});
    for (size_t at = 0; at < std::min<size_t>(whole.size(), 400); ++at) {
      for (const uint8_t value : {uint8_t{0x00}, uint8_t{0x7f}, uint8_t{0xff}}) {
        auto changed = whole;
        changed[at] = value;
        try {
          EXPECT_LE(read_description(changed, "x").size(), whole.size());
        } catch (const DataError&) {
        }
      }
    }
  }
}

TEST(Encode, TheExtensionTellsTheFormat) {
  EXPECT_EQ(format_of("a.png"), Format::kPng);
  EXPECT_EQ(format_of("folder.png/a.JPeG"), Format::kJpeg);
  EXPECT_EQ(format_of("a.jpg"), Format::kJpeg);
  EXPECT_EQ(format_of("a.b.webp"), Format::kWebp);
  EXPECT_EQ(format_of("a.bmp"), std::nullopt);
  EXPECT_EQ(format_of("png"), std::nullopt);
}

}  // namespace
}  // namespace flowshard::image
