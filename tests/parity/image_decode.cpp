#include <algorithm>

#include "image/image.h"
#include "image/resize.h"
#include "parity.h"
#include "storage/mapped_file.h"

namespace flowshard::parity {

// The decoded picture of each file as "0", "1", ...; [H, W, 3]. With the options "height" and "width":
// cropped and resized, or only resized with "whole".
Result image_decode(const Request& request) {
  Result result;
  for (const std::string& path : request.arguments) {
    const storage::MappedFile file(path);
    const auto* bytes = reinterpret_cast<const uint8_t*>(file.bytes().data());
    image::Image image = image::decode({bytes, file.bytes().size()}, path);
    if (request.options.contains("width")) {
      const auto change = request.options.value("whole", false) ? image::resize : image::crop_and_resize;
      image = change(image, request.options.at("width"), request.options.at("height"));
    }
    const at::Tensor pixels = at::empty({image.height, image.width, 3}, at::kByte);
    std::copy(image.pixels.begin(), image.pixels.end(), pixels.data_ptr<uint8_t>());
    result.tensors.emplace_back(std::to_string(result.tensors.size()), pixels);
  }
  return result;
}

}  // namespace flowshard::parity
