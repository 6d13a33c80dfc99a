// The Euler sampler. The model is a callable, so a closed-form velocity field tests it.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <span>

namespace flowshard::flow_matching {

/// The velocity dx/dsigma at x [B, L, C] fp32 and noise level sigma; any float dtype.
using Velocity = std::function<at::Tensor(const at::Tensor& x, float sigma)>;

/// Called after step i of n with the state that it reached. Throwing from it stops sampling.
using StepCallback = std::function<void(int64_t step, int64_t num_steps, const at::Tensor& x)>;

/// Integrates x from sigmas.front() to sigmas.back(): x += (sigma[i+1] - sigma[i]) * velocity(x, sigma[i]).
/// x stays fp32 throughout, whatever the precision of the model.
at::Tensor denoise(const Velocity& velocity, at::Tensor x, std::span<const float> sigmas,
                   const StepCallback& after_step = {});

/// True classifier-free guidance: negative + scale * (positive - negative).
Velocity with_true_cfg(Velocity positive, Velocity negative, double scale);

}  // namespace flowshard::flow_matching
