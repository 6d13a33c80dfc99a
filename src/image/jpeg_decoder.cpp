#include <cstdio>  // jpeglib.h needs FILE
//
#include <jerror.h>
#include <jpeglib.h>

#include <algorithm>
#include <csetjmp>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "core/error.h"
#include "image/decoders.h"

namespace flowshard::image {
namespace {

// A progressive file of a few megabytes can ask for passes over the whole picture that take hours. Real ones
// have about ten.
constexpr int kMaxScans = 500;

constexpr int kExifMarker = JPEG_APP0 + 1;
constexpr int kProfileMarker = JPEG_APP0 + 2;
constexpr std::string_view kExifPreamble("Exif\0\0", 6);

// libjpeg reports errors by a callback that must not return: it jumps to the setjmp of the function at work.
// Everything that owns memory lives here, outside those functions.
struct Decoder {
  explicit Decoder(std::span<const uint8_t> bytes) {
    jpeg.err = jpeg_std_error(&errors.base);
    errors.base.error_exit = [](j_common_ptr common) { fail(common); };
    errors.base.emit_message = &Decoder::notice;
    jpeg_create_decompress(&jpeg);
    progress.progress_monitor = &Decoder::limit_scans;
    jpeg.progress = &progress;
    jpeg_mem_src(&jpeg, bytes.data(), bytes.size());
    jpeg_save_markers(&jpeg, kExifMarker, 0xffff);
    jpeg_save_markers(&jpeg, kProfileMarker, 0xffff);
  }
  ~Decoder() { jpeg_destroy_decompress(&jpeg); }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  struct Errors {
    jpeg_error_mgr base;  // first: libjpeg's pointer to it is a pointer to Errors
    std::jmp_buf jump;
    char message[JMSG_LENGTH_MAX];
  };

  [[noreturn]] static void fail(j_common_ptr common) {
    auto* errors = reinterpret_cast<Errors*>(common->err);
    errors->base.format_message(common, errors->message);
    std::longjmp(errors->jump, 1);
  }

  // Warnings that mean lost pixels are errors; those about stray bytes are not.
  static void notice(j_common_ptr common, int level) {
    const int code = common->err->msg_code;
    const bool lost = code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER || code == JWRN_HUFF_BAD_CODE;
    if (level < 0 && lost) fail(common);
  }

  static void limit_scans(j_common_ptr common) {
    if (reinterpret_cast<j_decompress_ptr>(common)->input_scan_number <= kMaxScans) return;
    auto* errors = reinterpret_cast<Errors*>(common->err);
    fmt::format_to_n(errors->message, sizeof(errors->message) - 1, "it has more than {} scans{}", kMaxScans,
                     '\0');
    std::longjmp(errors->jump, 1);
  }

  // All return false on an error.
  bool read_header() {
    if (setjmp(errors.jump) != 0) return false;
    jpeg_read_header(&jpeg, TRUE);
    return true;
  }

  bool start() {
    if (setjmp(errors.jump) != 0) return false;
    jpeg.out_color_space = jpeg.num_components == 4 ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(&jpeg);
    return true;
  }

  bool read_rows(const std::vector<uint8_t*>& rows) {
    if (setjmp(errors.jump) != 0) return false;
    while (jpeg.output_scanline < jpeg.output_height) {
      jpeg_read_scanlines(&jpeg, const_cast<JSAMPARRAY>(rows.data() + jpeg.output_scanline),
                          jpeg.output_height - jpeg.output_scanline);
    }
    jpeg_finish_decompress(&jpeg);
    return true;
  }

  bool read_profile() {
    if (setjmp(errors.jump) != 0) return false;
    return jpeg_read_icc_profile(&jpeg, &profile, &profile_bytes) != 0;
  }

  Errors errors{};
  jpeg_progress_mgr progress{};
  jpeg_decompress_struct jpeg{};
  JOCTET* profile = nullptr;
  unsigned int profile_bytes = 0;
};

// Files of four components hold inverted CMYK, whether Adobe's marker says so or not (as Pillow reads them).
std::vector<uint8_t> cmyk_to_rgb(const std::vector<uint8_t>& cmyk) {
  std::vector<uint8_t> rgb(cmyk.size() / 4 * 3);
  for (size_t i = 0; i < cmyk.size() / 4; ++i) {
    for (size_t c = 0; c < 3; ++c) {
      rgb[i * 3 + c] = static_cast<uint8_t>((cmyk[i * 4 + c] * cmyk[i * 4 + 3] + 127) / 255);
    }
  }
  return rgb;
}

std::vector<uint8_t> find_exif(const jpeg_decompress_struct& jpeg) {
  for (auto* marker = jpeg.marker_list; marker != nullptr; marker = marker->next) {
    const std::string_view data(reinterpret_cast<const char*>(marker->data), marker->data_length);
    if (marker->marker == kExifMarker && data.starts_with(kExifPreamble)) {
      return {marker->data + kExifPreamble.size(), marker->data + marker->data_length};
    }
  }
  return {};
}

}  // namespace

Decoded decode_jpeg(std::span<const uint8_t> bytes, int64_t max_pixels) {
  Decoder decoder(bytes);
  const auto require = [&](bool done) {
    if (!done) throw DataError("cannot decode the JPEG: {}", decoder.errors.message);
  };
  require(decoder.read_header());
  check_size(decoder.jpeg.image_width, decoder.jpeg.image_height, max_pixels);
  Decoded picture;
  picture.width = static_cast<int>(decoder.jpeg.image_width);
  picture.height = static_cast<int>(decoder.jpeg.image_height);
  picture.exif = find_exif(decoder.jpeg);
  if (decoder.read_profile()) {
    const std::unique_ptr<JOCTET, void (*)(void*)> profile(decoder.profile, std::free);
    picture.profile.assign(profile.get(), profile.get() + decoder.profile_bytes);
  }

  require(decoder.start());
  const size_t row_bytes = size_t(picture.width) * decoder.jpeg.output_components;
  picture.pixels.resize(row_bytes * picture.height);
  std::vector<uint8_t*> rows;
  for (int y = 0; y < picture.height; ++y) rows.push_back(picture.pixels.data() + row_bytes * y);
  require(decoder.read_rows(rows));
  if (decoder.jpeg.output_components == 4) picture.pixels = cmyk_to_rgb(picture.pixels);
  return picture;
}

}  // namespace flowshard::image
