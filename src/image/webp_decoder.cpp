#include <webp/decode.h>
#include <webp/demux.h>

#include <memory>

#include "core/error.h"
#include "image/decoders.h"

namespace flowshard::image {
namespace {

std::vector<uint8_t> find_chunk(const WebPDemuxer* demuxer, const char* name) {
  WebPChunkIterator chunk;
  if (WebPDemuxGetChunk(demuxer, name, 1, &chunk) == 0) return {};
  std::vector<uint8_t> bytes(chunk.chunk.bytes, chunk.chunk.bytes + chunk.chunk.size);
  WebPDemuxReleaseChunkIterator(&chunk);
  return bytes;
}

}  // namespace

Decoded decode_webp(std::span<const uint8_t> bytes, int64_t max_pixels) {
  WebPBitstreamFeatures features;
  if (WebPGetFeatures(bytes.data(), bytes.size(), &features) != VP8_STATUS_OK) {
    throw DataError("cannot decode the WebP: its header is cut or unsound");
  }
  check_size(features.width, features.height, max_pixels);
  if (features.has_animation != 0) throw DataError("the WebP is an animation, not a picture");

  Decoded picture;
  picture.width = features.width;
  picture.height = features.height;
  picture.channels = features.has_alpha != 0 ? 4 : 3;
  picture.pixels.resize(size_t(picture.width) * picture.height * picture.channels);
  const auto decode_into = picture.channels == 4 ? WebPDecodeRGBAInto : WebPDecodeRGBInto;
  if (decode_into(bytes.data(), bytes.size(), picture.pixels.data(), picture.pixels.size(),
                  picture.width * picture.channels) == nullptr) {
    throw DataError("cannot decode the WebP: it is cut or damaged");
  }
  const WebPData data{bytes.data(), bytes.size()};
  const std::unique_ptr<WebPDemuxer, void (*)(WebPDemuxer*)> demuxer(WebPDemux(&data), WebPDemuxDelete);
  if (demuxer) {
    picture.exif = find_chunk(demuxer.get(), "EXIF");
    picture.profile = find_chunk(demuxer.get(), "ICCP");
  }
  return picture;
}

}  // namespace flowshard::image
