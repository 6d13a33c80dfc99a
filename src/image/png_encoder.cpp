#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <string>

#include "core/error.h"
#include "image/image.h"

namespace flowshard::image {
namespace {

// libpng reports errors by longjmp, which must not jump over destructors: everything that owns memory lives
// here, outside the function that calls setjmp.
struct Encoder {
  Encoder() {
    png = png_create_write_struct(PNG_LIBPNG_VER_STRING, this, &Encoder::fail,
                                  [](png_structp, png_const_charp) {});
    if (png != nullptr) info = png_create_info_struct(png);
    check(info != nullptr, "libpng has no memory or another version than its header");
  }
  ~Encoder() { png_destroy_write_struct(&png, &info); }
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  [[noreturn]] static void fail(png_structp png, png_const_charp message) {
    static_cast<Encoder*>(png_get_error_ptr(png))->message = message;
    png_longjmp(png, 1);
  }

  static void append(png_structp png, png_bytep bytes, png_size_t size) {
    auto& output = static_cast<Encoder*>(png_get_io_ptr(png))->output;
    output.insert(output.end(), bytes, bytes + size);
  }

  // Returns false on an error.
  bool run(const Image& image, const std::vector<png_text>& texts) {
    if (setjmp(png_jmpbuf(png)) != 0) return false;
    png_set_write_fn(png, this, &Encoder::append, nullptr);
    png_set_IHDR(png, info, static_cast<png_uint_32>(image.width), static_cast<png_uint_32>(image.height), 8,
                 PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
                 PNG_FILTER_TYPE_DEFAULT);
    png_set_text(png, info, texts.data(), static_cast<int>(texts.size()));
    png_write_info(png, info);
    for (int y = 0; y < image.height; ++y) {
      png_write_row(png, image.pixels.data() + size_t{3} * image.width * y);
    }
    png_write_end(png, info);
    return true;
  }

  png_structp png = nullptr;
  png_infop info = nullptr;
  std::vector<uint8_t> output;
  std::string message;
};

}  // namespace

std::vector<uint8_t> encode_png(const Image& image,
                                const std::vector<std::pair<std::string, std::string>>& text) {
  check(image.width > 0 && image.height > 0 && image.pixels.size() == size_t{3} * image.width * image.height,
        "an image has width x height x 3 bytes");
  std::vector<png_text> texts;
  for (const auto& [key, value] : text) {
    check(!key.empty() && key.size() < 80, "a PNG text key has 1 to 79 bytes");
    png_text entry{};
    const bool ascii =
        std::all_of(value.begin(), value.end(), [](char c) { return static_cast<uint8_t>(c) < 128; });
    entry.compression = ascii ? PNG_TEXT_COMPRESSION_NONE : PNG_ITXT_COMPRESSION_NONE;  // tEXt is Latin-1
    entry.key = const_cast<char*>(key.c_str());
    entry.text = const_cast<char*>(value.c_str());
    entry.text_length = value.size();
    texts.push_back(entry);
  }
  Encoder encoder;
  if (!encoder.run(image, texts)) throw DataError("cannot write the image as PNG: {}", encoder.message);
  return std::move(encoder.output);
}

}  // namespace flowshard::image
