#include "flow_matching/loss.h"

#include <ATen/CPUGeneratorImpl.h>

#include <cmath>

#include "core/error.h"
#include "core/mix_bits.h"
#include "flow_matching/schedule.h"

namespace flowshard::flow_matching {
namespace {

uint64_t mix(uint64_t x) { return mix_bits(x + kSplitMixStep); }

NoisyBatch mixture(const at::Tensor& x0, const at::Tensor& noise_on_cpu, const at::Tensor& t_on_cpu) {
  const at::Tensor noise = noise_on_cpu.to(x0.device()), t = t_on_cpu.to(x0.device());
  const at::Tensor weight = t.view({-1, 1, 1});
  return {(1 - weight) * x0 + weight * noise, noise - x0, t};
}

}  // namespace

uint64_t sample_seed(uint64_t seed, const SampleKey& key, Purpose purpose) {
  return mix(mix(mix(mix(seed) ^ key.sample_id) ^ key.epoch) ^ static_cast<uint64_t>(purpose));
}

NoisyBatch add_noise(const at::Tensor& x0, uint64_t seed, const std::vector<SampleKey>& keys,
                     const TimestepDensity& density) {
  check(x0.size(0) == static_cast<int64_t>(keys.size()), "one key per sample");
  const at::Tensor noise = at::empty(x0.sizes(), at::kFloat);
  const at::Tensor t = at::empty({x0.size(0)}, at::kFloat);
  for (int64_t i = 0; i < x0.size(0); ++i) {
    const at::Generator generator =
        at::detail::createCPUGenerator(sample_seed(seed, keys[i], Purpose::kNoise));
    const double normal = at::randn({1}, generator, at::kDouble).item<double>();
    const double u = 1 / (1 + std::exp(-(density.mean + density.std * normal)));
    t[i] = time_shift(density.mu, u);
    noise[i].normal_(0, 1, generator);
  }
  return mixture(x0, noise, t);
}

NoisyBatch add_validation_noise(const at::Tensor& x0, int64_t first_sample, const at::Tensor& t) {
  check(x0.size(0) == t.size(0), "one time per sample");
  const at::Tensor noise = at::empty(x0.sizes(), at::kFloat);
  for (int64_t i = 0; i < x0.size(0); ++i) {
    const SampleKey key = {.sample_id = static_cast<uint64_t>(first_sample + i), .epoch = 0};
    noise[i].normal_(0, 1, at::detail::createCPUGenerator(sample_seed(0, key, Purpose::kValidationNoise)));
  }
  return mixture(x0, noise, t);
}

at::Tensor flow_matching_loss(const at::Tensor& velocity, const at::Tensor& target, int64_t global_count) {
  return (velocity.to(at::kFloat) - target).square().sum() / static_cast<double>(global_count);
}

}  // namespace flowshard::flow_matching
