// Latents as the transformer sees them: packed tokens, their positions, and start noise.
// Shapes: B batch, C latent channels, h and w latent size (even), L = h/2 * w/2 image tokens.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace flowshard::flow_matching {

/// [B, C, h, w] -> [B, L, 4C]: each token is a 2x2 patch, channel-major (channel * 4 + row * 2 + column).
at::Tensor pack(const at::Tensor& latents);

/// The inverse of pack. `height` and `width` are h and w.
at::Tensor unpack(const at::Tensor& tokens, int64_t height, int64_t width);

/// Positions (0, row, column) of the tokens of an h x w latent, [L, 3] fp32. Text tokens are all (0, 0, 0).
at::Tensor image_ids(int64_t height, int64_t width);

/// The random numbers of one image: those of a CPU generator seeded with `seed`.
at::Generator generator_of(uint64_t seed);

/// torch.randn([1, C, h, w]) on the CPU, fp32: the bits that diffusers draws.
at::Tensor draw_noise(at::Generator& generator, int64_t channels, int64_t height, int64_t width);

}  // namespace flowshard::flow_matching
