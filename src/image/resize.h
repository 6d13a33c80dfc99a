// Antialiased resampling. Thread-safe: no state.
#pragma once

#include "image/image.h"

namespace flowshard::image {

/// The largest part of the picture about its centre that has the wanted ratio of sides, resampled to width x
/// height: bicubic, with a kernel as wide as the reduction, to Pillow's bytes. A picture of that size already
/// is returned as it is.
Image crop_and_resize(const Image& image, int width, int height);

/// The whole picture, its ratio of sides given up, by Lanczos' kernel of three lobes: to the bytes of
/// Pillow's resize() with LANCZOS, which is how diffusers brings a picture to the wanted size.
Image resize(const Image& image, int width, int height);

}  // namespace flowshard::image
