#include "inference/start_latents.h"

#include "flow_matching/latents.h"
#include "flow_matching/schedule.h"
#include "image/resize.h"
#include "inference/init_image.h"

namespace flowshard::inference {
namespace {

// [1, 3, H, W] in [-1, 1]
at::Tensor to_tensor(const image::Image& image) {
  const at::Tensor bytes =
      at::from_blob(const_cast<uint8_t*>(image.pixels.data()), {1, image.height, image.width, 3}, at::kByte);
  return bytes.permute({0, 3, 1, 2}).to(at::kFloat).contiguous() / 255 * 2 - 1;
}

}  // namespace

StartLatents start_latents(const Request& request, models::Autoencoder& autoencoder,
                           const models::AutoencoderConfig& config, std::span<const float> sigmas,
                           at::TensorOptions options) {
  const int64_t height = request.height / config.downsampling(),
                width = request.width / config.downsampling();
  at::Generator generator = flow_matching::generator_of(request.seed);
  const auto draw = [&] {
    return flow_matching::draw_noise(generator, config.latent_channels, height, width);
  };
  if (request.init_image.empty()) return {.x = draw(), .first_step = 0};

  const InitImage init_image = read_init_image(request.init_image, request.init_image_xxh3);
  const image::Image resized =
      image::resize(init_image.pixels, static_cast<int>(request.width), static_cast<int>(request.height));
  const auto posterior = autoencoder.encode(to_tensor(resized).to(options));
  const at::Tensor mean = posterior.mean.to(at::kCPU, at::kFloat);
  const at::Tensor std = (posterior.logvar.to(at::kCPU, at::kFloat) * 0.5).exp();
  const at::Tensor latents = (mean + std * draw() - config.shift_factor) * config.scaling_factor;

  const int64_t first_step = flow_matching::first_step(request.num_steps, request.strength);
  const float sigma = sigmas[first_step];
  return {.x = sigma * draw() + (1 - sigma) * latents, .first_step = first_step};
}

}  // namespace flowshard::inference
