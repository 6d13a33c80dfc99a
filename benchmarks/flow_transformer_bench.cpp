// Times one forward of the FLUX.1-dev transformer with random bf16 weights on one GPU: what one denoising
// step takes. benchmarks/flow_transformer_diffusers.py times the same in diffusers.
//   flow_transformer_bench [SIDE...]     sides of square pictures in pixels, default 1024 512
#include <ATen/cuda/CUDAEvent.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "flow_matching/latents.h"
#include "models/flow_transformer/flow_transformer.h"

namespace {

using namespace flowshard;

constexpr int kRuns = 20, kWarmUp = 3;
constexpr int64_t kTxt = 512;
constexpr double kPeak = 989e12;  // dense bf16, H100 and H200

// Matrix products and attention of one forward (docs/numerics.md); modulations are not counted.
double flops(const models::FlowTransformerConfig& config, double tokens) {
  const double d = static_cast<double>(config.hidden_size), mlp = static_cast<double>(config.mlp_hidden_dim);
  const double blocks = static_cast<double>(config.depth + config.depth_single_blocks);
  return tokens * blocks * (2 * (4 * d * d + 2 * d * mlp) + 4 * tokens * d);
}

void time_side(models::FlowTransformer& transformer, int64_t side) {
  const auto options = at::TensorOptions(at::kBFloat16).device(at::kCUDA);
  const auto fp32 = options.dtype(at::kFloat);
  const int64_t tokens = side / 16 * (side / 16);
  nn::DirectRunner runner;
  const at::Tensor y = at::randn({1, transformer.config().vec_in_dim}, options);
  const auto modulations =
      transformer.modulations(at::linspace(1, 0.1, 28, fp32), y, at::full({1}, 3.5, fp32), runner);
  const models::FlowTransformerInput input = {
      .img = at::randn({1, tokens, transformer.config().in_channels}, fp32),
      .txt = at::randn({1, kTxt, transformer.config().context_in_dim}, options),
      .angles = transformer.rotary_angles(flow_matching::image_ids(side / 8, side / 8), kTxt),
      .modulations = models::at_step(modulations, 3)};
  std::vector<double> times;
  for (int run = -kWarmUp; run < kRuns; ++run) {
    at::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
    begin.record();
    const at::Tensor v = transformer.forward(input, runner);
    end.record();
    end.synchronize();
    if (run == 0 && !at::isfinite(v).all().item<bool>())
      throw std::runtime_error("the velocity is not finite");
    if (run >= 0) times.push_back(begin.elapsed_time(end));
  }
  std::ranges::sort(times);
  const double median = times[kRuns / 2];
  const double work = flops(transformer.config(), static_cast<double>(tokens + kTxt));
  fmt::print(
      "flowshard {0}x{0}: {1:.2f} ms a step (10th to 90th percentile {2:.2f} to {3:.2f}), {4:.1f} TFLOP, "
      "{5:.0f} % of peak\n",
      side, median, times[kRuns / 10], times[kRuns * 9 / 10], work / 1e12,
      100 * work / (median * 1e-3) / kPeak);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const at::NoGradGuard no_grad;
  std::vector<int64_t> sides = {1024, 512};
  if (argc > 1) sides.clear();
  for (int i = 1; i < argc; ++i) sides.push_back(std::atoll(argv[i]));
  models::FlowTransformer transformer(models::FlowTransformerConfig{});
  nn::materialize(transformer.parameters(), at::TensorOptions(at::kBFloat16).device(at::kCUDA));
  for (nn::Parameter* parameter : transformer.parameters()) parameter->value.normal_(0, 0.02);
  for (const int64_t side : sides) time_side(transformer, side);
}
