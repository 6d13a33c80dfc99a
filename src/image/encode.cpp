#include "image/encode.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "image/encoders.h"

namespace flowshard::image {

std::optional<Format> format_of(const std::filesystem::path& file) {
  std::string extension = file.extension().string();
  for (char& letter : extension) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  if (extension == ".png") return Format::kPng;
  if (extension == ".jpg" || extension == ".jpeg") return Format::kJpeg;
  if (extension == ".webp") return Format::kWebp;
  return std::nullopt;
}

std::string_view extension_of(Format format) {
  return format == Format::kPng ? ".png" : format == Format::kJpeg ? ".jpg" : ".webp";
}

std::vector<uint8_t> encode(const Image& image, Format format, const EncodeOptions& options) {
  check(image.width > 0 && image.height > 0 && image.pixels.size() == size_t{3} * image.width * image.height,
        "an image has width x height x 3 bytes");
  check(options.quality >= 1 && options.quality <= 100, "the quality is from 1 to 100");
  check(options.description.size() <= max_description_bytes(format), "the description is too long");
  if (format == Format::kPng) {
    if (options.description.empty()) return encode_png(image);
    return encode_png(image, {{kDescriptionKey, options.description}});
  }
  const std::vector<uint8_t> exif =
      options.description.empty() ? std::vector<uint8_t>{} : exif_of_description(options.description);
  return format == Format::kJpeg ? encode_jpeg(image, options.quality, exif)
                                 : encode_webp(image, options.quality, exif);
}

size_t max_description_bytes(Format format) {
  // A marker of JPEG has at most 65,533 bytes.
  constexpr size_t kExifOverhead = 32;
  return format == Format::kJpeg ? 65533 - kExifOverhead - 1 : size_t{std::numeric_limits<int32_t>::max()};
}

}  // namespace flowshard::image
