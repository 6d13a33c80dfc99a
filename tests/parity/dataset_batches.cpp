#include <fmt/format.h>

#include <algorithm>

#include "dataset/dataset.h"
#include "parity.h"

namespace flowshard::parity {

// The first "num_batches" batches from the shards of the arguments: "pixels.0" [B, H, W, 3], "sample_ids.0"
// [B], ...; keys and captions as JSON lists under the same names in the metadata.
Result dataset_batches(const Request& request) {
  dataset::DatasetOptions options;
  options.shards = request.arguments;
  options.height = request.options.at("height");
  options.width = request.options.at("width");
  options.batch_size = request.options.at("batch_size");
  dataset::BatchLoader loader(options);
  Result result;
  for (int64_t b = 0; b < request.options.at("num_batches").get<int64_t>(); ++b) {
    const dataset::Batch batch = loader.next();
    const at::Tensor pixels = at::empty({options.batch_size, options.height, options.width, 3}, at::kByte);
    std::copy(batch.pixels.begin(), batch.pixels.end(), pixels.data_ptr<uint8_t>());
    const at::Tensor ids = at::empty({options.batch_size}, at::kLong);
    std::copy(batch.sample_ids.begin(), batch.sample_ids.end(), ids.data_ptr<int64_t>());
    result.tensors.emplace_back(fmt::format("pixels.{}", b), pixels);
    result.tensors.emplace_back(fmt::format("sample_ids.{}", b), ids);
    result.metadata[fmt::format("keys.{}", b)] = nlohmann::json(batch.keys).dump();
    result.metadata[fmt::format("captions.{}", b)] = nlohmann::json(batch.captions).dump();
  }
  return result;
}

}  // namespace flowshard::parity
