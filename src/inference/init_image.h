// The picture that image to image starts from.
#pragma once

#include <filesystem>
#include <string>

#include "image/image.h"

namespace flowshard::inference {

struct InitImage {
  image::Image pixels;
  std::string xxh3;  // of the file's bytes: XXH3, 64 bits, as 16 hexadecimal digits
};

/// Throws ConfigError if `file` is no readable picture, or if `expected_xxh3` is not "" and the file has
/// other bytes.
InitImage read_init_image(const std::filesystem::path& file, const std::string& expected_xxh3);

}  // namespace flowshard::inference
