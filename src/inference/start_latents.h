// Where sampling starts: noise, or noise over the latents of a picture. Shapes: C latent channels, h and w
// latent size.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <span>

#include "inference/request.h"
#include "models/autoencoder/autoencoder.h"

namespace flowshard::inference {

struct StartLatents {
  at::Tensor x;        // [1, C, h, w] fp32, on the CPU, at the noise level sigmas[first_step]
  int64_t first_step;  // 0 of text to image
};

/// The bits that diffusers starts from with a CPU generator of the request's seed: of image to image it draws
/// a sample of the posterior first, then the noise. `options` are the autoencoder's device and precision;
/// what is drawn and mixed is fp32. Throws ConfigError as read_init_image() does.
StartLatents start_latents(const Request& request, models::Autoencoder& autoencoder,
                           const models::AutoencoderConfig& config, std::span<const float> sigmas,
                           at::TensorOptions options);

}  // namespace flowshard::inference
