// Convolutions over pictures too large to hold several times: they are made in bands of rows, and what lies
// between two of them (normed, upsampled) exists one band at a time. The result is that of the whole picture
// to rounding. Shapes: B batch, C channels, H and W size of the picture here.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "models/autoencoder/blocks.h"

namespace flowshard::models {

/// Pictures of more bytes are worked on in bands of about a quarter of it.
constexpr int64_t kWholePictureBytes = int64_t{128} << 20;

/// conv(silu(norm(x))) for a 3x3 convolution; x [B, C, H, W]. The statistics are those of the whole picture,
/// joined from those of the bands in fp32 (Chan et al., 1979, equation 1.5).
at::Tensor norm_silu_conv(const GroupNorm& norm, const Conv2d& conv, const at::Tensor& x,
                          int64_t whole_bytes = kWholePictureBytes);

/// conv(x, each pixel doubled in both directions) for a 3x3 convolution: [B, C, H, W] -> [B, O, 2 H, 2 W].
at::Tensor upsample_conv(const Conv2d& conv, const at::Tensor& x, int64_t whole_bytes = kWholePictureBytes);

/// sum += conv(x) for a 1x1 convolution.
void add_conv(at::Tensor& sum, const Conv2d& conv, const at::Tensor& x,
              int64_t whole_bytes = kWholePictureBytes);

}  // namespace flowshard::models
