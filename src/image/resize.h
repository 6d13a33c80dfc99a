// Antialiased resampling. Thread-safe: no state.
#pragma once

#include "image/image.h"

namespace flowshard::image {

/// The largest part of the picture about its centre that has the wanted ratio of sides, resampled to width x
/// height: bicubic, with a kernel as wide as the reduction, as Pillow does, to the same bytes where Pillow
/// too takes the rows first. A picture of that size already is returned as it is.
Image crop_and_resize(const Image& image, int width, int height);

}  // namespace flowshard::image
