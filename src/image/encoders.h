// The encoder of each format but PNG's, for encode.cpp alone. They throw DataError without naming a file.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "image/image.h"

namespace flowshard::image {

inline constexpr const char* kDescriptionKey = "Description";  // one of those that PNG's specification names

/// `exif` is a TIFF structure; empty stores none. Colour is not subsampled.
std::vector<uint8_t> encode_jpeg(const Image& image, int quality, std::span<const uint8_t> exif);

/// Lossless at quality 100.
std::vector<uint8_t> encode_webp(const Image& image, int quality, std::span<const uint8_t> exif);

/// A TIFF structure that holds an ImageDescription and nothing else.
std::vector<uint8_t> exif_of_description(const std::string& description);

}  // namespace flowshard::image
