#include "image/resize.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace flowshard::image {
namespace {

// One output pixel is the sum of weights[i] * input pixel first + i.
struct Kernel {
  int first = 0;
  std::vector<float> weights;
};

// Keys' cubic convolution with a = -1/2 (https://doi.org/10.1109/TASSP.1981.1163711).
double cubic(double x) {
  x = std::abs(x);
  if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
  if (x < 2) return ((-0.5 * x + 2.5) * x - 4) * x + 2;
  return 0;
}

// The kernels that take [begin, begin + length) of an axis of `size` pixels to `target` pixels.
std::vector<Kernel> make_kernels(double begin, double length, int size, int target) {
  const double scale = length / target;
  const double stretch = std::max(scale, 1.0);  // a wider kernel averages what a reduction would skip
  std::vector<Kernel> kernels(target);
  for (int i = 0; i < target; ++i) {
    const double centre = begin + (i + 0.5) * scale;
    const int first = std::max(0, static_cast<int>(std::floor(centre - 2 * stretch + 0.5)));
    const int last = std::min(size, static_cast<int>(std::floor(centre + 2 * stretch + 0.5)));
    double sum = 0;
    for (int j = first; j < last; ++j) sum += cubic((j + 0.5 - centre) / stretch);
    kernels[i].first = first;
    for (int j = first; j < last; ++j) {
      kernels[i].weights.push_back(static_cast<float>(cubic((j + 0.5 - centre) / stretch) / sum));
    }
  }
  return kernels;
}

uint8_t to_byte(float value) { return static_cast<uint8_t>(std::clamp(value + 0.5F, 0.0F, 255.0F)); }

// Along x.
Image resample_rows(const Image& image, const std::vector<Kernel>& kernels) {
  Image result{.width = static_cast<int>(kernels.size()), .height = image.height, .pixels = {}};
  result.pixels.reserve(size_t{3} * result.width * result.height);
  for (int y = 0; y < image.height; ++y) {
    for (const Kernel& kernel : kernels) {
      const uint8_t* from = &image.pixels[(size_t(y) * image.width + kernel.first) * 3];
      float sum[3] = {0, 0, 0};
      for (const float weight : kernel.weights) {
        for (float& channel : sum) channel += weight * static_cast<float>(*from++);
      }
      for (const float channel : sum) result.pixels.push_back(to_byte(channel));
    }
  }
  return result;
}

// Along y.
Image resample_columns(const Image& image, const std::vector<Kernel>& kernels) {
  Image result{.width = image.width, .height = static_cast<int>(kernels.size()), .pixels = {}};
  result.pixels.reserve(size_t{3} * result.width * result.height);
  std::vector<float> sums(size_t{3} * image.width);
  for (const Kernel& kernel : kernels) {
    std::fill(sums.begin(), sums.end(), 0.0F);
    const uint8_t* from = &image.pixels[size_t(kernel.first) * sums.size()];
    for (const float weight : kernel.weights) {
      for (float& sum : sums) sum += weight * static_cast<float>(*from++);
    }
    for (const float sum : sums) result.pixels.push_back(to_byte(sum));
  }
  return result;
}

}  // namespace

Image crop_and_resize(const Image& image, int width, int height) {
  check(width > 0 && height > 0 && image.width > 0 && image.height > 0, "sizes are positive");
  if (image.width == width && image.height == height) return image;
  const double scale =
      std::min(static_cast<double>(image.width) / width, static_cast<double>(image.height) / height);
  const double crop_width = scale * width;
  const double crop_height = scale * height;
  const Image rows =
      resample_rows(image, make_kernels((image.width - crop_width) / 2, crop_width, image.width, width));
  return resample_columns(rows,
                          make_kernels((image.height - crop_height) / 2, crop_height, image.height, height));
}

}  // namespace flowshard::image
