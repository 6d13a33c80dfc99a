#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <string>

#include "core/error.h"
#include "image/decoders.h"

namespace flowshard::image {
namespace {

// Colour profiles and EXIF data above this are ignored, also when a small compressed chunk inflates to more.
constexpr png_alloc_size_t kMaxChunkBytes = 8 << 20;

// libpng reports errors by longjmp, which must not jump over destructors: everything that owns memory lives
// here, outside the functions that call setjmp.
struct Decoder {
  explicit Decoder(std::span<const uint8_t> bytes) : rest(bytes) {
    png = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, &Decoder::fail,
                                 [](png_structp, png_const_charp) {});
    if (png != nullptr) info = png_create_info_struct(png);
    check(info != nullptr, "libpng has no memory or another version than its header");
  }
  ~Decoder() { png_destroy_read_struct(&png, &info, nullptr); }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  [[noreturn]] static void fail(png_structp png, png_const_charp message) {
    static_cast<Decoder*>(png_get_error_ptr(png))->message = message;
    png_longjmp(png, 1);
  }

  static void read(png_structp png, png_bytep target, png_size_t size) {
    auto& rest = static_cast<Decoder*>(png_get_io_ptr(png))->rest;
    if (rest.size() < size) png_error(png, "the file is cut");
    std::copy_n(rest.begin(), size, target);
    rest = rest.subspan(size);
  }

  // Both return false on an error.
  bool read_header() {
    if (setjmp(png_jmpbuf(png)) != 0) return false;
    png_set_read_fn(png, this, &Decoder::read);
    png_set_user_limits(png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // check_size() limits their product
    png_set_chunk_malloc_max(png, kMaxChunkBytes);
    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, kSkippedChunks, kNumSkippedChunks);
    png_read_info(png, info);
    return true;
  }

  // `target` gives the first byte of each row.
  bool read_pixels(const std::vector<uint8_t*>& rows) {
    if (setjmp(png_jmpbuf(png)) != 0) return false;
    png_read_image(png, const_cast<png_bytepp>(rows.data()));
    png_read_end(png, info);
    return true;
  }

  // To 8-bit RGB or RGBA. Returns false on an error.
  bool set_transforms() {
    if (setjmp(png_jmpbuf(png)) != 0) return false;
    png_set_expand(png);
    png_set_scale_16(png);
    png_set_gray_to_rgb(png);
    png_set_interlace_handling(png);
    png_read_update_info(png, info);
    return true;
  }

  // Names of four bytes, each with its end. Compressed text is where decompression bombs hide.
  static constexpr int kNumSkippedChunks = 3;
  static constexpr png_byte kSkippedChunks[] = "tEXt\0zTXt\0iTXt";

  std::span<const uint8_t> rest;
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::string message;
};

}  // namespace

Decoded decode_png(std::span<const uint8_t> bytes, int64_t max_pixels) {
  Decoder decoder(bytes);
  const auto require = [&](bool done) {
    if (!done) throw DataError("cannot decode the PNG: {}", decoder.message);
  };
  require(decoder.read_header());
  Decoded picture;
  check_size(png_get_image_width(decoder.png, decoder.info), png_get_image_height(decoder.png, decoder.info),
             max_pixels);
  picture.width = static_cast<int>(png_get_image_width(decoder.png, decoder.info));
  picture.height = static_cast<int>(png_get_image_height(decoder.png, decoder.info));
  require(decoder.set_transforms());
  picture.channels = png_get_channels(decoder.png, decoder.info);

  const size_t row_bytes = size_t(picture.width) * picture.channels;
  check(png_get_rowbytes(decoder.png, decoder.info) == row_bytes,
        "the PNG transforms give 8-bit RGB or RGBA");
  picture.pixels.resize(row_bytes * picture.height);
  std::vector<uint8_t*> rows;
  for (int y = 0; y < picture.height; ++y) rows.push_back(picture.pixels.data() + row_bytes * y);
  require(decoder.read_pixels(rows));

  png_charp name = nullptr;
  int compression = 0;
  png_bytep profile = nullptr;
  png_uint_32 profile_bytes = 0;
  if (png_get_iCCP(decoder.png, decoder.info, &name, &compression, &profile, &profile_bytes) != 0) {
    picture.profile.assign(profile, profile + profile_bytes);
  }
  png_bytep exif = nullptr;
  png_uint_32 exif_bytes = 0;
  if (png_get_eXIf_1(decoder.png, decoder.info, &exif_bytes, &exif) != 0) {
    picture.exif.assign(exif, exif + exif_bytes);
  }
  return picture;
}

}  // namespace flowshard::image
