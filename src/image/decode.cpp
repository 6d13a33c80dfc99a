#include <algorithm>
#include <array>

#include "core/error.h"
#include "image/decoders.h"
#include "image/encode.h"
#include "image/encoders.h"
#include "image/image.h"

namespace flowshard::image {
namespace {

constexpr std::string_view kPngSignature = "\x89PNG\r\n\x1a\n";

bool starts_with(std::span<const uint8_t> bytes, size_t offset, std::string_view text) {
  return bytes.size() >= offset + text.size() &&
         std::equal(text.begin(), text.end(), bytes.begin() + static_cast<int64_t>(offset),
                    [](char c, uint8_t byte) { return static_cast<uint8_t>(c) == byte; });
}

Decoded decode_by_content(std::span<const uint8_t> bytes, int64_t max_pixels) {
  if (bytes.empty()) throw DataError("the file is empty");
  if (starts_with(bytes, 0, kPngSignature)) return decode_png(bytes, max_pixels);
  if (starts_with(bytes, 0, "\xff\xd8\xff")) return decode_jpeg(bytes, max_pixels);
  if (starts_with(bytes, 0, "RIFF") && starts_with(bytes, 8, "WEBP")) return decode_webp(bytes, max_pixels);
  throw DataError("not a PNG, JPEG or WebP picture");
}

// Composites on white.
std::vector<uint8_t> to_rgb(Decoded picture) {
  if (picture.channels == 3) return std::move(picture.pixels);
  std::vector<uint8_t> rgb(picture.pixels.size() / 4 * 3);
  for (size_t i = 0; i < picture.pixels.size() / 4; ++i) {
    const int alpha = picture.pixels[i * 4 + 3];
    for (size_t c = 0; c < 3; ++c) {
      rgb[i * 3 + c] =
          static_cast<uint8_t>((picture.pixels[i * 4 + c] * alpha + 255 * (255 - alpha) + 127) / 255);
    }
  }
  return rgb;
}

// Undoes the EXIF orientation: 2 to 4 mirror, 5 to 8 also swap the axes.
Image upright(Image image, int orientation) {
  if (orientation == 1) return image;
  const bool swaps = orientation >= 5;
  const bool mirror_x = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool mirror_y = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  Image result{.width = swaps ? image.height : image.width,
               .height = swaps ? image.width : image.height,
               .pixels = {}};
  result.pixels.resize(image.pixels.size());
  for (int y = 0; y < result.height; ++y) {
    for (int x = 0; x < result.width; ++x) {
      int from_x = swaps ? y : x;
      int from_y = swaps ? x : y;
      if (mirror_x) from_x = image.width - 1 - from_x;
      if (mirror_y) from_y = image.height - 1 - from_y;
      const uint8_t* from = &image.pixels[(size_t(from_y) * image.width + from_x) * 3];
      std::copy_n(from, 3, &result.pixels[(size_t(y) * result.width + x) * 3]);
    }
  }
  return result;
}

}  // namespace

void check_size(int64_t width, int64_t height, int64_t max_pixels) {
  if (width < 1 || height < 1) throw DataError("the picture has no pixels ({} x {})", width, height);
  if (width > max_pixels / height) {
    throw DataError("{} x {} pixels are above the limit of {}", width, height, max_pixels);
  }
}

Image decode(std::span<const uint8_t> bytes, const std::string& source, int64_t max_pixels) {
  try {
    Decoded picture = decode_by_content(bytes, max_pixels);
    convert_to_srgb(picture);
    const int orientation = exif_orientation(picture.exif);
    const int width = picture.width;
    const int height = picture.height;
    return upright({.width = width, .height = height, .pixels = to_rgb(std::move(picture))}, orientation);
  } catch (const DataError& error) {
    throw DataError("{}: {}", source, error.what());
  }
}

std::string read_description(std::span<const uint8_t> bytes, const std::string& source) {
  try {
    const Decoded picture = decode_by_content(bytes, kMaxPixels);
    return starts_with(bytes, 0, kPngSignature) ? find_png_text(bytes, kDescriptionKey)
                                                : exif_description(picture.exif);
  } catch (const DataError& error) {
    throw DataError("{}: {}", source, error.what());
  }
}

}  // namespace flowshard::image
