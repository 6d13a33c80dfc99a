#include "image/resize.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace flowshard::image {
namespace {

// Integers, so that the bytes are the same on every machine, and Pillow's. A sum of up to 1.3 * 255 fits in
// 32 bits.
constexpr int kFractionBits = 22;

// One output pixel is the sum of weights[i] / 2^kFractionBits * input pixel first + i.
struct Kernel {
  int first = 0;
  std::vector<int32_t> weights;
};

// What a kernel is sampled from: zero beyond `support`.
struct Filter {
  double (*value)(double x);
  double support;
};

// Keys' cubic convolution with a = -1/2 (https://doi.org/10.1109/TASSP.1981.1163711).
double cubic(double x) {
  x = std::abs(x);
  if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
  if (x < 2) return ((-0.5 * x + 2.5) * x - 4) * x + 2;
  return 0;
}

double sinc(double x) {
  if (x == 0) return 1;
  x *= std::numbers::pi;
  return std::sin(x) / x;
}

double lanczos(double x) { return std::abs(x) < 3 ? sinc(x) * sinc(x / 3) : 0; }

constexpr Filter kCubic{cubic, 2};
constexpr Filter kLanczos{lanczos, 3};

// The kernels that take [begin, end) of an axis of `size` pixels to `target` pixels.
std::vector<Kernel> make_kernels(const Filter& filter, float begin, float end, int size, int target) {
  const double scale = double{end - begin} / target;
  const double stretch = std::max(scale, 1.0);  // a wider kernel averages what a reduction would skip
  std::vector<Kernel> kernels(target);
  for (int i = 0; i < target; ++i) {
    const double centre = begin + (i + 0.5) * scale;
    const int first = std::max(0, static_cast<int>(centre - filter.support * stretch + 0.5));
    const int last = std::min(size, static_cast<int>(centre + filter.support * stretch + 0.5));
    std::vector<double> weights;
    double sum = 0;
    for (int j = first; j < last; ++j) {
      weights.push_back(filter.value((j - centre + 0.5) / stretch));
      sum += weights.back();
    }
    kernels[i].first = first;
    for (const double weight : weights) {
      kernels[i].weights.push_back(static_cast<int32_t>(std::round(weight / sum * (1 << kFractionBits))));
    }
  }
  return kernels;
}

uint8_t to_byte(int32_t sum) {
  return static_cast<uint8_t>(std::clamp((sum + (1 << (kFractionBits - 1))) >> kFractionBits, 0, 255));
}

// Along x.
Image resample_rows(const Image& image, const std::vector<Kernel>& kernels) {
  Image result{.width = static_cast<int>(kernels.size()), .height = image.height, .pixels = {}};
  result.pixels.reserve(size_t{3} * result.width * result.height);
  for (int y = 0; y < image.height; ++y) {
    for (const Kernel& kernel : kernels) {
      const uint8_t* from = &image.pixels[(size_t(y) * image.width + kernel.first) * 3];
      int32_t sum[3] = {0, 0, 0};
      for (const int32_t weight : kernel.weights) {
        for (int32_t& channel : sum) channel += weight * *from++;
      }
      for (const int32_t channel : sum) result.pixels.push_back(to_byte(channel));
    }
  }
  return result;
}

// Along y.
Image resample_columns(const Image& image, const std::vector<Kernel>& kernels) {
  Image result{.width = image.width, .height = static_cast<int>(kernels.size()), .pixels = {}};
  result.pixels.reserve(size_t{3} * result.width * result.height);
  std::vector<int32_t> sums(size_t{3} * image.width);
  for (const Kernel& kernel : kernels) {
    std::fill(sums.begin(), sums.end(), 0);
    const uint8_t* from = &image.pixels[size_t(kernel.first) * sums.size()];
    for (const int32_t weight : kernel.weights) {
      for (int32_t& sum : sums) sum += weight * *from++;
    }
    for (const int32_t sum : sums) result.pixels.push_back(to_byte(sum));
  }
  return result;
}

// Pillow takes the columns first where that leaves the rows much less to do; the order shows in the last bit.
Image resample(const Image& image, const std::vector<Kernel>& x_kernels,
               const std::vector<Kernel>& y_kernels) {
  const int fewer_rows = image.height - static_cast<int>(y_kernels.size());
  const int fewer_columns = image.width - static_cast<int>(x_kernels.size());
  if (fewer_rows > 0 && fewer_rows > 2 * fewer_columns) {
    return resample_rows(resample_columns(image, y_kernels), x_kernels);
  }
  return resample_columns(resample_rows(image, x_kernels), y_kernels);
}

void check_sizes(const Image& image, int width, int height) {
  check(width > 0 && height > 0 && image.width > 0 && image.height > 0, "sizes are positive");
}

}  // namespace

Image crop_and_resize(const Image& image, int width, int height) {
  check_sizes(image, width, height);
  if (image.width == width && image.height == height) return image;
  const double scale =
      std::min(static_cast<double>(image.width) / width, static_cast<double>(image.height) / height);
  const auto kernels = [&](int size, int target) {
    const double begin = (size - scale * target) / 2;
    return make_kernels(kCubic, static_cast<float>(begin), static_cast<float>(begin + scale * target), size,
                        target);
  };
  return resample(image, kernels(image.width, width), kernels(image.height, height));
}

Image resize(const Image& image, int width, int height) {
  check_sizes(image, width, height);
  if (image.width == width && image.height == height) return image;
  const auto kernels = [](int size, int target) {
    return make_kernels(kLanczos, 0, static_cast<float>(size), size, target);
  };
  return resample(image, kernels(image.width, width), kernels(image.height, height));
}

}  // namespace flowshard::image
