// The Euler sampler. The model is a callable, so a closed-form velocity field tests it.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <span>

namespace flowshard::flow_matching {

/// The velocity dx/dsigma at x [B, L, C] fp32 and noise level sigma; any float dtype.
using Velocity = std::function<at::Tensor(const at::Tensor& x, float sigma)>;

/// One step that was made.
struct Step {
  int64_t index, num_steps;  // index: 1 after the first
  const at::Tensor& x;       // the state that it reached, fp32
  const at::Tensor& v;       // the velocity that led there, fp32
  float sigma;               // the noise level of x

  /// Where the straight line along v ends: x - sigma v, the image as this step sees it.
  at::Tensor estimate() const { return x - sigma * v; }
};

/// Called after each step. Throwing from it stops sampling.
using StepCallback = std::function<void(const Step& step)>;

/// Integrates x from sigmas.front() to sigmas.back(): x += (sigma[i+1] - sigma[i]) * velocity(x, sigma[i]).
/// x stays fp32 throughout, whatever the precision of the model.
at::Tensor denoise(const Velocity& velocity, at::Tensor x, std::span<const float> sigmas,
                   const StepCallback& after_step = {});

/// True classifier-free guidance: negative + scale * (positive - negative).
Velocity with_true_cfg(Velocity positive, Velocity negative, double scale);

}  // namespace flowshard::flow_matching
