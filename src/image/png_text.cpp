// The text chunks of a PNG. libpng's own reading of them also inflates compressed ones, where decompression
// bombs hide: decode_png() skips them all.
#include <algorithm>

#include "image/decoders.h"

namespace flowshard::image {
namespace {

constexpr size_t kSignatureBytes = 8;

size_t big_endian(std::span<const uint8_t> bytes) {
  return size_t{bytes[0]} << 24 | size_t{bytes[1]} << 16 | size_t{bytes[2]} << 8 | bytes[3];
}

std::string_view text_of(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The rest after the first `n` zero bytes; "" if there are fewer.
std::string_view after_zeros(std::string_view text, int n) {
  for (; n > 0; --n) {
    const size_t zero = text.find('\0');
    if (zero == text.npos) return "";
    text.remove_prefix(zero + 1);
  }
  return text;
}

}  // namespace

std::string find_png_text(std::span<const uint8_t> bytes, std::string_view key) {
  // A chunk: length of its data, name, data, checksum.
  for (size_t at = kSignatureBytes; at + 12 <= bytes.size();) {
    const size_t size = big_endian(bytes.subspan(at));
    if (size > bytes.size() - at - 12) return "";
    const std::string_view name = text_of(bytes.subspan(at + 4, 4));
    std::string_view data = text_of(bytes.subspan(at + 8, size));
    at += size + 12;
    if ((name != "tEXt" && name != "iTXt") || data.substr(0, data.find('\0')) != key) continue;
    data = after_zeros(data, 1);
    if (name == "tEXt") return std::string(data);
    const bool compressed =
        data.empty() || data[0] != '\0';  // then come a method, a language, a translated key
    return compressed ? "" : std::string(after_zeros(data.substr(std::min<size_t>(data.size(), 2)), 2));
  }
  return "";
}

}  // namespace flowshard::image
