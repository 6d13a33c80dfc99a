#include "models/autoencoder/bands.h"

#include <algorithm>
#include <functional>
#include <vector>

namespace flowshard::models {
namespace {

struct Band {
  int64_t first, last;  // rows [first, last)
  int64_t rows() const { return last - first; }
};

/// One band if the picture is small, else bands of a quarter of `whole_bytes`.
std::vector<Band> bands_of(const at::Tensor& x, int64_t whole_bytes) {
  const int64_t height = x.size(2), row_bytes = x.numel() / height * x.element_size();
  const int64_t rows =
      height * row_bytes <= whole_bytes ? height : std::max<int64_t>(1, whole_bytes / 4 / row_bytes);
  std::vector<Band> bands;
  for (int64_t row = 0; row < height; row += rows) bands.push_back({row, std::min(row + rows, height)});
  return bands;
}

at::Tensor rows_of(const at::Tensor& x, const Band& band) { return x.narrow(2, band.first, band.rows()); }

/// A 3x3 convolution of the rows of `band` alone. `prepare` makes any rows of what it convolves; it is asked
/// for one more above and below, and beyond the `height` rows of the picture there are zeros.
at::Tensor conv_of_band(const Conv2d& conv, const Band& band, int64_t height,
                        const std::function<at::Tensor(const Band&)>& prepare) {
  const Band wider = {std::max<int64_t>(band.first - 1, 0), std::min(band.last + 1, height)};
  const int64_t above = wider.first - (band.first - 1), below = band.last + 1 - wider.last;
  return conv.forward_inner_rows(at::constant_pad_nd(prepare(wider), {0, 0, above, below}));
}

/// What a group norm does to each channel: x * scale + shift, both [B, C, 1, 1] fp32.
struct ChannelAffine {
  at::Tensor scale, shift;
};

ChannelAffine affine_of(const GroupNorm& norm, const at::Tensor& x, const std::vector<Band>& bands) {
  const int64_t batch = x.size(0), groups = norm.num_groups();
  std::vector<at::Tensor> means, variances, weights;  // of each band, [B, G]
  for (const Band& band : bands) {
    const at::Tensor values = rows_of(x, band).to(at::kFloat).reshape({batch, groups, -1});
    const auto [variance, mean] = at::var_mean(values, at::IntArrayRef{2}, /*correction=*/0);
    means.push_back(mean);
    variances.push_back(variance);
    weights.push_back(
        at::full({1, 1}, static_cast<double>(band.rows()) / static_cast<double>(x.size(2)), mean.options()));
  }
  const at::Tensor weight = at::stack(weights), band_means = at::stack(means);
  const at::Tensor mean = (band_means * weight).sum(0);
  const at::Tensor variance = ((at::stack(variances) + (band_means - mean).square()) * weight).sum(0);
  const at::Tensor rstd = at::rsqrt(variance + GroupNorm::kEps);
  const auto to_channels = [&](const at::Tensor& of_group) {
    return of_group.repeat_interleave(x.size(1) / groups, 1);  // [B, G] -> [B, C]
  };
  const at::Tensor scale = to_channels(rstd) * norm.weight().to(at::kFloat);
  const at::Tensor shift = norm.bias().to(at::kFloat) - to_channels(mean) * scale;
  return {scale.unflatten(1, {-1, 1, 1}), shift.unflatten(1, {-1, 1, 1})};
}

}  // namespace

at::Tensor norm_silu_conv(const GroupNorm& norm, const Conv2d& conv, const at::Tensor& x,
                          int64_t whole_bytes) {
  const std::vector<Band> bands = bands_of(x, whole_bytes);
  if (bands.size() == 1) return conv.forward(norm.forward_silu(x));
  const ChannelAffine affine = affine_of(norm, x, bands);
  const at::Tensor out = at::empty({x.size(0), conv.out_channels(), x.size(2), x.size(3)}, x.options());
  const auto normed = [&](const Band& band) {
    at::Tensor y = at::addcmul(affine.shift, rows_of(x, band), affine.scale);
    return at::silu_(y).to(x.scalar_type());
  };
  for (const Band& band : bands) rows_of(out, band).copy_(conv_of_band(conv, band, x.size(2), normed));
  return out;
}

at::Tensor upsample_conv(const Conv2d& conv, const at::Tensor& x, int64_t whole_bytes) {
  const int64_t height = 2 * x.size(2), width = 2 * x.size(3);
  const std::vector<Band> bands = bands_of(x, whole_bytes / 4);  // what they become is four times as large
  if (bands.size() == 1) return conv.forward(at::upsample_nearest2d(x, {height, width}));
  const at::Tensor out = at::empty({x.size(0), conv.out_channels(), height, width}, x.options());
  const auto upsampled = [&](const Band& band) {
    const Band source = {band.first / 2, (band.last + 1) / 2};
    const at::Tensor doubled = at::upsample_nearest2d(rows_of(x, source), {2 * source.rows(), width});
    return doubled.narrow(2, band.first - 2 * source.first, band.rows());
  };
  for (const Band& band : bands) {
    const Band doubled = {2 * band.first, 2 * band.last};
    rows_of(out, doubled).copy_(conv_of_band(conv, doubled, height, upsampled));
  }
  return out;
}

void add_conv(at::Tensor& sum, const Conv2d& conv, const at::Tensor& x, int64_t whole_bytes) {
  for (const Band& band : bands_of(x, whole_bytes)) {
    rows_of(sum, band).add_(conv.forward(rows_of(x, band)));
  }
}

}  // namespace flowshard::models
