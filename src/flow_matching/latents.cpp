#include "flow_matching/latents.h"

#include <ATen/CPUGeneratorImpl.h>

namespace flowshard::flow_matching {

at::Tensor pack(const at::Tensor& latents) {
  const int64_t b = latents.size(0), c = latents.size(1), h = latents.size(2), w = latents.size(3);
  return latents.view({b, c, h / 2, 2, w / 2, 2})
      .permute({0, 2, 4, 1, 3, 5})
      .reshape({b, h / 2 * (w / 2), c * 4});
}

at::Tensor unpack(const at::Tensor& tokens, int64_t height, int64_t width) {
  const int64_t b = tokens.size(0), c = tokens.size(2) / 4;
  return tokens.view({b, height / 2, width / 2, c, 2, 2})
      .permute({0, 3, 1, 4, 2, 5})
      .reshape({b, c, height, width});
}

at::Tensor image_ids(int64_t height, int64_t width) {
  const at::Tensor ids = at::zeros({height / 2, width / 2, 3}, at::kFloat);
  ids.select(2, 1).copy_(at::arange(height / 2, at::kFloat).unsqueeze(1));
  ids.select(2, 2).copy_(at::arange(width / 2, at::kFloat).unsqueeze(0));
  return ids.view({-1, 3});
}

at::Generator generator_of(uint64_t seed) { return at::detail::createCPUGenerator(seed); }

at::Tensor draw_noise(at::Generator& generator, int64_t channels, int64_t height, int64_t width) {
  return at::randn({1, channels, height, width}, generator, at::kFloat);
}

}  // namespace flowshard::flow_matching
