// The flow-matching objective (rectified flow, https://arxiv.org/abs/2209.03003; FLUX's convention: t = 1 is
// noise). x_t = (1 - t) x0 + t eps; the model predicts v = eps - x0. Shapes: B batch, L image tokens, C
// channels of a token.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace flowshard::flow_matching {

/// Which sample of which epoch: with the run's seed, all that its noise and time depend on.
struct SampleKey {
  uint64_t sample_id;
  uint64_t epoch;
};

/// Logit-normal time: t = sigmoid(mean + std * n), n ~ N(0, 1), then time_shift by mu.
struct TimestepDensity {
  double mean = 0.0;
  double std = 1.0;
  double mu = 0.0;
};

struct NoisyBatch {
  at::Tensor x_t;     // [B, L, C] fp32
  at::Tensor target;  // [B, L, C] fp32: eps - x0
  at::Tensor t;       // [B] fp32
};

/// Noise and time of each sample are a function of (seed, key) alone: not of rank, batch, world size or
/// device. x0 [B, L, C] fp32; draws on the CPU, the result lies on x0's device.
NoisyBatch add_noise(const at::Tensor& x0, uint64_t seed, const std::vector<SampleKey>& keys,
                     const TimestepDensity& density);

/// The same at times t [B] (fp32, on the CPU) for validation: the noise of sample first_sample + i of the
/// data set is a function of this number alone, so that losses of all steps and all runs can be compared.
NoisyBatch add_validation_noise(const at::Tensor& x0, int64_t first_sample, const at::Tensor& t);

/// Sum of squared errors in fp32, divided by `global_count` (elements of this step over all ranks and
/// accumulation steps): so that plain sums of gradients over ranks and steps give the gradient of the mean.
at::Tensor flow_matching_loss(const at::Tensor& velocity, const at::Tensor& target, int64_t global_count);

/// What a sample's random streams are for; each purpose is a stream of its own.
enum class Purpose : uint64_t { kNoise, kCaptionDropout, kValidationNoise };

/// A well-mixed 64-bit hash of (seed, key, purpose), the seed of that stream.
uint64_t sample_seed(uint64_t seed, const SampleKey& key, Purpose purpose);

}  // namespace flowshard::flow_matching
