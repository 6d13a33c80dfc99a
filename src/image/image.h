// Pictures as 8-bit RGB in memory, and their files. Thread-safe: no state.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace flowshard::image {

/// Interleaved RGB rows, top to bottom, no padding: pixels[(y * width + x) * 3 + channel].
struct Image {
  int width = 0;
  int height = 0;
  std::vector<uint8_t> pixels;
};

/// What decode() takes unless told otherwise.
inline constexpr int64_t kMaxPixels = 178'956'970;

/// Decodes PNG, JPEG or WebP (told by content, not by name). EXIF orientation is applied, CMYK and grey
/// become RGB, RGB with an embedded profile becomes sRGB, transparent pixels are composited on white, 16-bit
/// samples are rounded to 8. Throws DataError naming `source` if the bytes are no such picture, are cut, or
/// claim more than `max_pixels` (checked in the header, before any pixel memory is taken) or 500 JPEG scans.
Image decode(std::span<const uint8_t> bytes, const std::string& source, int64_t max_pixels = kMaxPixels);

/// The picture as a PNG file; the same picture gives the same bytes. `text` becomes one tEXt chunk for each
/// key and value, or iTXt where the value (UTF-8) is not ASCII.
std::vector<uint8_t> encode_png(const Image& image,
                                const std::vector<std::pair<std::string, std::string>>& text = {});

}  // namespace flowshard::image
