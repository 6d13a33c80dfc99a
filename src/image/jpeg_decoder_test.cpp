#include <gtest/gtest.h>

#include <cstdio>  // jpeglib.h needs FILE
//
#include <jpeglib.h>

#include <cstdlib>
#include <string>

#include "core/error.h"
#include "image/changed_bytes.h"
#include "image/image.h"

namespace flowshard::image {
namespace {

using Bytes = std::vector<uint8_t>;

struct JpegOptions {
  int width = 40;
  int height = 20;
  int components = 3;
  J_COLOR_SPACE input = JCS_RGB;
  J_COLOR_SPACE stored = JCS_YCbCr;
  bool adobe_marker = false;
  bool progressive = false;
  Bytes exif = {};  // with preamble
};

// `pixels`: [height, width, components].
Bytes encode_jpeg(const Bytes& pixels, const JpegOptions& options) {
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* buffer = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&jpeg, &buffer, &size);
  jpeg.image_width = options.width;
  jpeg.image_height = options.height;
  jpeg.input_components = options.components;
  jpeg.in_color_space = options.input;
  jpeg_set_defaults(&jpeg);
  jpeg_set_colorspace(&jpeg, options.stored);
  jpeg_set_quality(&jpeg, 100, TRUE);
  jpeg.write_Adobe_marker = options.adobe_marker ? TRUE : FALSE;
  if (options.progressive) jpeg_simple_progression(&jpeg);
  jpeg_start_compress(&jpeg, TRUE);
  if (!options.exif.empty()) {
    jpeg_write_marker(&jpeg, JPEG_APP0 + 1, options.exif.data(), static_cast<unsigned>(options.exif.size()));
  }
  while (jpeg.next_scanline < jpeg.image_height) {
    auto* row =
        const_cast<JSAMPROW>(pixels.data() + size_t(jpeg.next_scanline) * options.width * options.components);
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  jpeg_destroy_compress(&jpeg);
  Bytes bytes(buffer, buffer + size);
  std::free(buffer);
  return bytes;
}

Bytes exif_with_orientation(uint8_t value, bool big_endian) {
  Bytes exif{'E', 'x', 'i', 'f', 0, 0};
  const Bytes tiff =
      big_endian ? Bytes{'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1, 1, 0x12, 0, 3, 0, 0, 0, 1, 0, value, 0, 0}
                 : Bytes{'I', 'I', 42, 0, 8, 0, 0, 0, 1, 0, 0x12, 1, 3, 0, 1, 0, 0, 0, value, 0, 0, 0};
  exif.insert(exif.end(), tiff.begin(), tiff.end());
  exif.insert(exif.end(), 4, 0);  // no further directory
  return exif;
}

// 40 x 20 when upright: red on the left half, white above blue on the right half.
std::array<uint8_t, 3> upright_pixel(int x, int y) {
  if (x < 20) return {255, 0, 0};
  return y < 10 ? std::array<uint8_t, 3>{255, 255, 255} : std::array<uint8_t, 3>{0, 0, 255};
}

// The upright place of stored pixel (x, y), written down from the EXIF standard's table: where row 0 and
// column 0 of the stored picture are to be seen.
std::pair<int, int> upright_place(int orientation, int x, int y) {
  switch (orientation) {
    case 1:
      return {x, y};  // top, left
    case 2:
      return {39 - x, y};  // top, right
    case 3:
      return {39 - x, 19 - y};  // bottom, right
    case 4:
      return {x, 19 - y};  // bottom, left
    case 5:
      return {y, x};  // left, top
    case 6:
      return {39 - y, x};  // right, top
    case 7:
      return {39 - y, 19 - x};  // right, bottom
    default:
      return {y, 19 - x};  // left, bottom
  }
}

Bytes stored_pixels(int orientation) {
  const int width = orientation < 5 ? 40 : 20;
  Bytes pixels;
  for (int y = 0; y < 800 / width; ++y) {
    for (int x = 0; x < width; ++x) {
      const auto [up_x, up_y] = upright_place(orientation, x, y);
      for (const uint8_t channel : upright_pixel(up_x, up_y)) pixels.push_back(channel);
    }
  }
  return pixels;
}

int largest_difference(const Image& image, int x, int y, const std::array<uint8_t, 3>& wanted) {
  int largest = 0;
  for (int c = 0; c < 3; ++c) {
    largest = std::max(largest, std::abs(image.pixels[(y * image.width + x) * 3 + c] - wanted[c]));
  }
  return largest;
}

std::string error_of(const Bytes& bytes, int64_t max_pixels = 178'956'970) {
  try {
    decode(bytes, "tar:key.jpg", max_pixels);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

TEST(JpegDecoder, EveryOrientationBecomesTheSameUprightPicture) {
  for (int orientation = 1; orientation <= 8; ++orientation) {
    for (const bool big_endian : {false, true}) {
      JpegOptions options;
      options.width = orientation < 5 ? 40 : 20;
      options.height = 800 / options.width;
      options.exif = exif_with_orientation(static_cast<uint8_t>(orientation), big_endian);
      const Image image = decode(encode_jpeg(stored_pixels(orientation), options), "x");
      ASSERT_EQ(image.width, 40);
      ASSERT_EQ(image.height, 20);
      for (const auto& [x, y] : {std::pair{3, 3}, {3, 16}, {36, 3}, {36, 16}}) {
        EXPECT_LE(largest_difference(image, x, y, upright_pixel(x, y)), 3)
            << orientation << " at " << x << "," << y;
      }
    }
  }
}

TEST(JpegDecoder, UnsoundExifMeansNoRotation) {
  const Bytes sound = exif_with_orientation(6, false);
  std::vector<Bytes> unsound;
  for (size_t size = 0; size < 26; ++size) unsound.emplace_back(sound.begin(), sound.begin() + size);
  for (const size_t at : {6, 8, 10, 16, 18, 24}) {  // byte order, magic, offset, tag, type, value
    unsound.push_back(sound);
    unsound.back()[at] = 0xff;
  }
  for (const Bytes& exif : unsound) {
    JpegOptions options;
    options.exif = exif;
    const Image image = decode(encode_jpeg(stored_pixels(1), options), "x");
    EXPECT_EQ(image.width, 40) << exif.size();
  }
}

TEST(JpegDecoder, FourComponentsAreNeverInverted) {
  const std::array<uint8_t, 3> color{200, 60, 30};
  Bytes cmyk;  // as files hold it: inverted, and here with the K of no black
  for (int i = 0; i < 256; ++i) cmyk.insert(cmyk.end(), {color[0], color[1], color[2], 255});
  for (const J_COLOR_SPACE stored : {JCS_YCCK, JCS_CMYK}) {
    for (const bool adobe : {true, false}) {
      if (stored == JCS_YCCK && !adobe) continue;  // without the mark nothing tells YCCK from CMYK
      const JpegOptions options{.width = 16,
                                .height = 16,
                                .components = 4,
                                .input = JCS_CMYK,
                                .stored = stored,
                                .adobe_marker = adobe};
      EXPECT_LE(largest_difference(decode(encode_jpeg(cmyk, options), "x"), 8, 8, color), 3);
    }
  }
}

TEST(JpegDecoder, GreyBecomesRgb) {
  const JpegOptions options{.components = 1, .input = JCS_GRAYSCALE, .stored = JCS_GRAYSCALE};
  const Image image = decode(encode_jpeg(Bytes(800, 90), options), "x");
  EXPECT_LE(largest_difference(image, 5, 5, {90, 90, 90}), 1);
}

TEST(JpegDecoder, CutFilesAreErrorsThatNameTheSource) {
  const Bytes whole = encode_jpeg(stored_pixels(1), {});
  EXPECT_EQ(error_of(whole), "");
  for (const size_t size : {whole.size() - 1, whole.size() / 2, size_t{100}, size_t{3}}) {
    const std::string error = error_of({whole.begin(), whole.begin() + static_cast<int64_t>(size)});
    EXPECT_TRUE(error.starts_with("tar:key.jpg: cannot decode the JPEG: ")) << size << ": " << error;
  }
}

TEST(JpegDecoder, ABareByteAfterTheEndDoesNotMatter) {
  Bytes bytes = encode_jpeg(stored_pixels(1), {});
  bytes.push_back(0);
  EXPECT_EQ(error_of(bytes), "");
}

TEST(JpegDecoder, OtherContentIsNamedAsSuch) {
  EXPECT_EQ(error_of({}), "tar:key.jpg: the file is empty");
  const std::string page = "<!DOCTYPE html><html></html>";
  EXPECT_EQ(error_of({page.begin(), page.end()}), "tar:key.jpg: not a PNG, JPEG or WebP picture");
  EXPECT_EQ(error_of({0x1f, 0x8b, 8, 0, 0, 0, 0, 0}), "tar:key.jpg: not a PNG, JPEG or WebP picture");
}

TEST(JpegDecoder, ASizeAboveTheLimitIsRefusedFromTheHeader) {
  Bytes bytes = encode_jpeg(stored_pixels(1), {});
  const Bytes frame{0xff, 0xc0, 0, 17, 8};
  const auto found = std::search(bytes.begin(), bytes.end(), frame.begin(), frame.end());
  ASSERT_NE(found, bytes.end());
  for (int i = 0; i < 4; ++i) found[5 + i] = i % 2 == 0 ? 0xff : 0xdc;  // 65500 x 65500
  EXPECT_NE(error_of(bytes).find("65500 x 65500 pixels are above the limit of 178956970"), std::string::npos);
  EXPECT_NE(error_of(encode_jpeg(stored_pixels(1), {}), 799).find("above the limit"), std::string::npos);
}

TEST(JpegDecoder, ManyScansAreRefused) {
  JpegOptions options;
  options.progressive = true;
  const Bytes whole = encode_jpeg(stored_pixels(1), options);
  ASSERT_EQ(error_of(whole), "");
  const Bytes start_of_scan{0xff, 0xda};
  const auto last = std::find_end(whole.begin(), whole.end(), start_of_scan.begin(), start_of_scan.end());
  Bytes bytes(whole.begin(), whole.end() - 2);
  for (int i = 0; i < 500; ++i) bytes.insert(bytes.end(), last, whole.end() - 2);
  bytes.insert(bytes.end(), whole.end() - 2, whole.end());
  EXPECT_EQ(error_of(bytes), "tar:key.jpg: cannot decode the JPEG: it has more than 500 scans");
}

TEST(JpegDecoder, ChangedBytesGiveAPictureOrADataError) {
  expect_picture_or_data_error(
      encode_jpeg(stored_pixels(6), {.width = 20, .height = 40, .exif = exif_with_orientation(6, true)}));
}

}  // namespace
}  // namespace flowshard::image
