#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "image/decoders.h"
#include "image/encoders.h"

namespace flowshard::image {
namespace {

constexpr uint32_t kDescriptionTag = 0x010e;
constexpr uint32_t kOrientationTag = 0x0112;
constexpr uint32_t kAsciiType = 2;
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

  // At most `size` bytes, up to the first zero.
  std::string text(size_t offset, size_t size) const {
    if (offset > bytes_.size()) return "";
    const auto rest = bytes_.subspan(offset, std::min(size, bytes_.size() - offset));
    return {rest.begin(), std::find(rest.begin(), rest.end(), uint8_t{0})};
  }

 private:
  std::span<const uint8_t> bytes_;
  bool big_endian_ = false;
};

// An entry of the first directory: tag, type, count, value or where it is.
struct Entry {
  TiffReader tiff;
  size_t offset;
};

std::optional<Entry> find_entry(std::span<const uint8_t> exif, uint32_t tag, uint32_t type) {
  // Some writers of PNG and WebP keep the preamble of a JPEG marker.
  constexpr std::string_view kPreamble("Exif\0\0", 6);
  if (exif.size() > kPreamble.size() && std::equal(kPreamble.begin(), kPreamble.end(), exif.begin())) {
    exif = exif.subspan(kPreamble.size());
  }
  TiffReader tiff(exif);
  if (!tiff.read_byte_order() || tiff.number(2, 2) != 42U) return std::nullopt;
  const auto directory = tiff.number(4, 4);
  if (!directory) return std::nullopt;
  const uint32_t num_entries = tiff.number(*directory, 2).value_or(0);
  for (size_t i = 0; i < num_entries; ++i) {
    const size_t offset = size_t{*directory} + 2 + i * 12;
    if (tiff.number(offset, 2) != tag) continue;
    return tiff.number(offset + 2, 2) == type ? std::optional(Entry{tiff, offset}) : std::nullopt;
  }
  return std::nullopt;
}

void append(std::vector<uint8_t>& bytes, size_t value, int size) {
  for (int i = 0; i < size; ++i) bytes.push_back(static_cast<uint8_t>(value >> (8 * i)));
}

}  // namespace

int exif_orientation(std::span<const uint8_t> exif) {
  const auto entry = find_entry(exif, kOrientationTag, kShortType);
  if (!entry) return 1;
  const uint32_t value = entry->tiff.number(entry->offset + 8, 2).value_or(1);
  return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
}

std::string exif_description(std::span<const uint8_t> exif) {
  const auto entry = find_entry(exif, kDescriptionTag, kAsciiType);
  if (!entry) return "";
  const uint32_t size = entry->tiff.number(entry->offset + 4, 4).value_or(0);
  const size_t value = entry->offset + 8;
  return entry->tiff.text(size <= 4 ? value : entry->tiff.number(value, 4).value_or(0), size);
}

std::vector<uint8_t> exif_of_description(const std::string& description) {
  std::vector<uint8_t> bytes = {'I', 'I', 42, 0};
  append(bytes, 8, 4);  // where the directory is
  append(bytes, 1, 2);  // entries in it
  append(bytes, kDescriptionTag, 2);
  append(bytes, kAsciiType, 2);
  const size_t size = std::max<size_t>(description.size() + 1, 5);  // shorter ones stand in the entry itself
  append(bytes, size, 4);
  append(bytes, 26, 4);  // where the text is
  append(bytes, 0, 4);   // no further directory
  bytes.insert(bytes.end(), description.begin(), description.end());
  bytes.resize(26 + size);
  return bytes;
}

}  // namespace flowshard::image
