// The picture decoders, with EXIF data and colour profiles.
#include <zlib.h>

#include <cstring>

#include "core/error.h"
#include "fuzz.h"
#include "image/encode.h"
#include "image/image.h"

using namespace flowshard;

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int64_t kMaxPixels = 1 << 20;
  fuzz::expect_result_or_error<DataError>([&] {
    const image::Image picture = image::decode({data, size}, "picture", kMaxPixels);
    fuzz::require(picture.width > 0 && picture.height > 0, "a picture has pixels");
    fuzz::require(int64_t{picture.width} * picture.height <= kMaxPixels, "the limit holds");
    fuzz::require(picture.pixels.size() == size_t{3} * picture.width * picture.height, "pixels are RGB");
    image::read_description({data, size}, "picture");
  });
  return 0;
}

namespace {

uint32_t read_big_endian(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

// A changed chunk with its old checksum would be refused before anything looks at it.
void repair_png_checksums(uint8_t* data, size_t size) {
  for (size_t at = 8; at + 12 <= size;) {
    const size_t length = read_big_endian(data + at);
    if (length > size - at - 12) return;
    const uLong checksum = crc32(0, data + at + 4, static_cast<uInt>(length + 4));
    for (int i = 0; i < 4; ++i) data[at + 8 + length + i] = static_cast<uint8_t>(checksum >> (24 - 8 * i));
    at += length + 12;
  }
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  size = LLVMFuzzerMutate(data, size, max_size);
  if (seed % 8 != 0 && size > 8 && std::memcmp(data, "\x89PNG", 4) == 0) repair_png_checksums(data, size);
  return size;
}
