#include <cstdio>  // jpeglib.h needs FILE
//
#include <jpeglib.h>

#include <csetjmp>
#include <cstdlib>

#include "core/error.h"
#include "image/encoders.h"

namespace flowshard::image {
namespace {

constexpr int kExifMarker = JPEG_APP0 + 1;

// libjpeg reports errors by a callback that must not return: it jumps to the setjmp of run(). Everything that
// owns memory lives here, outside that function.
struct Encoder {
  Encoder() {
    jpeg.err = jpeg_std_error(&errors.base);
    errors.base.error_exit = [](j_common_ptr common) {
      auto* errors = reinterpret_cast<Errors*>(common->err);
      errors->base.format_message(common, errors->message);
      std::longjmp(errors->jump, 1);
    };
    errors.base.emit_message = [](j_common_ptr, int) {};
    jpeg_create_compress(&jpeg);
    jpeg_mem_dest(&jpeg, &output, &output_bytes);
  }
  ~Encoder() {
    jpeg_destroy_compress(&jpeg);
    std::free(output);
  }
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  struct Errors {
    jpeg_error_mgr base;  // first: libjpeg's pointer to it is a pointer to Errors
    std::jmp_buf jump;
    char message[JMSG_LENGTH_MAX];
  };

  // Returns false on an error.
  bool run(const Image& image, int quality, const std::vector<uint8_t>& exif_marker) {
    if (setjmp(errors.jump) != 0) return false;
    jpeg.image_width = static_cast<JDIMENSION>(image.width);
    jpeg.image_height = static_cast<JDIMENSION>(image.height);
    jpeg.input_components = 3;
    jpeg.in_color_space = JCS_RGB;
    jpeg_set_defaults(&jpeg);
    jpeg_set_quality(&jpeg, quality, TRUE);
    jpeg.optimize_coding = TRUE;
    for (int i = 0; i < jpeg.num_components; ++i) {
      jpeg.comp_info[i].h_samp_factor = 1;
      jpeg.comp_info[i].v_samp_factor = 1;
    }
    jpeg_start_compress(&jpeg, TRUE);
    if (!exif_marker.empty()) {
      jpeg_write_marker(&jpeg, kExifMarker, exif_marker.data(),
                        static_cast<unsigned int>(exif_marker.size()));
    }
    while (jpeg.next_scanline < jpeg.image_height) {
      auto* row = const_cast<JSAMPLE*>(image.pixels.data() + size_t{3} * image.width * jpeg.next_scanline);
      jpeg_write_scanlines(&jpeg, &row, 1);
    }
    jpeg_finish_compress(&jpeg);
    return true;
  }

  Errors errors{};
  jpeg_compress_struct jpeg{};
  unsigned char* output = nullptr;
  unsigned long output_bytes = 0;
};

}  // namespace

std::vector<uint8_t> encode_jpeg(const Image& image, int quality, std::span<const uint8_t> exif) {
  std::vector<uint8_t> marker;
  if (!exif.empty()) {
    constexpr uint8_t kPreamble[] = {'E', 'x', 'i', 'f', 0, 0};
    marker.assign(std::begin(kPreamble), std::end(kPreamble));
    marker.insert(marker.end(), exif.begin(), exif.end());
  }
  Encoder encoder;
  if (!encoder.run(image, quality, marker)) {
    throw DataError("cannot write the image as JPEG: {}", encoder.errors.message);
  }
  return {encoder.output, encoder.output + encoder.output_bytes};
}

}  // namespace flowshard::image
