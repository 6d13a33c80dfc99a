// Picture files: the three formats, and a text that travels in them. Thread-safe: no state.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "image/image.h"

namespace flowshard::image {

enum class Format { kPng, kJpeg, kWebp };

/// By the extension, in any case: .png, .jpg, .jpeg, .webp.
std::optional<Format> format_of(const std::filesystem::path& file);

std::string_view extension_of(Format format);  // ".jpg"

struct EncodeOptions {
  int quality = 95;              // of JPEG and WebP, 1 to 100; 100 is lossless in WebP
  std::string description = {};  // UTF-8, in JPEG and WebP ASCII; "" stores none
};

/// The same picture and options give the same bytes with the same libraries. The description is stored in
/// PNG as the text "Description", in JPEG and WebP as EXIF's ImageDescription.
std::vector<uint8_t> encode(const Image& image, Format format, const EncodeOptions& options = {});

/// The longest description that the format can hold, in bytes.
size_t max_description_bytes(Format format);

/// The description that encode() or another program stored, "" if there is none. Decodes the picture: throws
/// DataError as image::decode() does, so that what is returned comes from a whole picture.
std::string read_description(std::span<const uint8_t> bytes, const std::string& source);

}  // namespace flowshard::image
