// The decoder of each format, for decode.cpp alone. All check the size in the header against `max_pixels`
// before they take memory for pixels, refuse cut files, and throw DataError without naming the source.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace flowshard::image {

/// A picture as its file stores it.
struct Decoded {
  int width = 0;
  int height = 0;
  int channels = 3;              // 4: with alpha, not premultiplied
  std::vector<uint8_t> pixels;   // [height, width, channels]
  std::vector<uint8_t> exif;     // the TIFF structure, without a preamble; empty if there is none
  std::vector<uint8_t> profile;  // ICC; empty if there is none
};

Decoded decode_png(std::span<const uint8_t> bytes, int64_t max_pixels);
Decoded decode_jpeg(std::span<const uint8_t> bytes, int64_t max_pixels);
Decoded decode_webp(std::span<const uint8_t> bytes, int64_t max_pixels);

/// Throws DataError if the size is empty or above the limit.
void check_size(int64_t width, int64_t height, int64_t max_pixels);

/// Converts to sRGB in place. A profile that is sRGB, unsound or not of RGB values changes nothing.
void convert_to_srgb(Decoded& picture);

/// The orientation tag, 1 to 8; 1 if there is none or the structure is unsound.
int exif_orientation(std::span<const uint8_t> exif);

/// The ImageDescription; "" if there is none or the structure is unsound.
std::string exif_description(std::span<const uint8_t> exif);

/// The text under `key` of a PNG that decode_png() has read, not a compressed one; "" if there is none.
std::string find_png_text(std::span<const uint8_t> bytes, std::string_view key);

}  // namespace flowshard::image
