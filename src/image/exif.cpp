#include <algorithm>
#include <optional>
#include <string_view>

#include "image/decoders.h"

namespace flowshard::image {
namespace {

constexpr uint32_t kOrientationTag = 0x0112;
constexpr uint32_t kShortType = 3;

// Numbers of a TIFF structure, in the byte order that it names; none where it ends.
class TiffReader {
 public:
  explicit TiffReader(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  bool read_byte_order() {
    if (bytes_.size() < 2 || bytes_[0] != bytes_[1]) return false;
    big_endian_ = bytes_[0] == 'M';
    return big_endian_ || bytes_[0] == 'I';
  }

  std::optional<uint32_t> number(size_t offset, size_t size) const {
    if (offset > bytes_.size() || bytes_.size() - offset < size) return std::nullopt;
    uint32_t value = 0;
    for (size_t i = 0; i < size; ++i) {
      value = value << 8 | bytes_[offset + (big_endian_ ? i : size - 1 - i)];
    }
    return value;
  }

 private:
  std::span<const uint8_t> bytes_;
  bool big_endian_ = false;
};

}  // namespace

int exif_orientation(std::span<const uint8_t> exif) {
  // Some writers of PNG and WebP keep the preamble of a JPEG marker.
  constexpr std::string_view kPreamble("Exif\0\0", 6);
  if (exif.size() > kPreamble.size() && std::equal(kPreamble.begin(), kPreamble.end(), exif.begin())) {
    exif = exif.subspan(kPreamble.size());
  }
  TiffReader tiff(exif);
  if (!tiff.read_byte_order() || tiff.number(2, 2) != 42U) return 1;
  const auto directory = tiff.number(4, 4);
  if (!directory) return 1;
  const uint32_t num_entries = tiff.number(*directory, 2).value_or(0);
  for (size_t i = 0; i < num_entries; ++i) {
    const size_t entry = size_t{*directory} + 2 + i * 12;
    if (tiff.number(entry, 2) != kOrientationTag) continue;
    const uint32_t value = tiff.number(entry + 8, 2).value_or(1);
    return tiff.number(entry + 2, 2) == kShortType && value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

}  // namespace flowshard::image
