#include <webp/encode.h>
#include <webp/mux.h>

#include <memory>

#include "core/error.h"
#include "image/encoders.h"

namespace flowshard::image {
namespace {

struct Writer {
  Writer() { WebPMemoryWriterInit(&memory); }
  ~Writer() { WebPMemoryWriterClear(&memory); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
  WebPMemoryWriter memory;
};

struct Picture {
  Picture() { check(WebPPictureInit(&webp) != 0, "libwebp has another version than its header"); }
  ~Picture() { WebPPictureFree(&webp); }
  Picture(const Picture&) = delete;
  Picture& operator=(const Picture&) = delete;
  WebPPicture webp;
};

void require(bool done, int error_code) {
  if (!done) throw DataError("cannot write the image as WebP: libwebp's error {}", error_code);
}

// The file with a chunk of EXIF data.
std::vector<uint8_t> with_exif(const WebPData& file, std::span<const uint8_t> exif) {
  const std::unique_ptr<WebPMux, void (*)(WebPMux*)> mux(WebPMuxCreate(&file, 0), WebPMuxDelete);
  require(mux != nullptr, WEBP_MUX_MEMORY_ERROR);
  const WebPData chunk{exif.data(), exif.size()};
  WebPMuxError error = WebPMuxSetChunk(mux.get(), "EXIF", &chunk, 0);
  require(error == WEBP_MUX_OK, error);
  WebPData joined{};
  error = WebPMuxAssemble(mux.get(), &joined);
  std::vector<uint8_t> bytes(joined.bytes, joined.bytes + joined.size);
  WebPDataClear(&joined);
  require(error == WEBP_MUX_OK, error);
  return bytes;
}

}  // namespace

std::vector<uint8_t> encode_webp(const Image& image, int quality, std::span<const uint8_t> exif) {
  WebPConfig config;
  check(WebPConfigInit(&config) != 0, "libwebp has another version than its header");
  config.quality = static_cast<float>(quality);
  config.lossless = quality == 100 ? 1 : 0;
  config.use_sharp_yuv = 1;  // lossy WebP halves the resolution of colour: keeps thin coloured lines
  Picture picture;
  picture.webp.use_argb = config.lossless;
  picture.webp.width = image.width;
  picture.webp.height = image.height;
  Writer writer;
  picture.webp.writer = WebPMemoryWrite;
  picture.webp.custom_ptr = &writer.memory;
  require(WebPPictureImportRGB(&picture.webp, image.pixels.data(), 3 * image.width) != 0 &&
              WebPEncode(&config, &picture.webp) != 0,
          picture.webp.error_code);
  if (exif.empty()) return {writer.memory.mem, writer.memory.mem + writer.memory.size};
  return with_exif({writer.memory.mem, writer.memory.size}, exif);
}

}  // namespace flowshard::image
