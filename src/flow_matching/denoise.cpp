#include "flow_matching/denoise.h"

#include <utility>

namespace flowshard::flow_matching {

at::Tensor denoise(const Velocity& velocity, at::Tensor x, std::span<const float> sigmas,
                   const StepCallback& after_step) {
  const int64_t num_steps = static_cast<int64_t>(sigmas.size()) - 1;
  for (int64_t i = 0; i < num_steps; ++i) {
    const at::Tensor v = velocity(x, sigmas[i]).to(at::kFloat);
    x = x + (sigmas[i + 1] - sigmas[i]) * v;
    if (after_step) after_step({i + 1, num_steps, x, v, sigmas[i + 1]});
  }
  return x;
}

Velocity with_true_cfg(Velocity positive, Velocity negative, double scale) {
  return [positive = std::move(positive), negative = std::move(negative), scale](const at::Tensor& x,
                                                                                 float sigma) {
    const at::Tensor v_negative = negative(x, sigma);
    return v_negative + scale * (positive(x, sigma) - v_negative);
  };
}

}  // namespace flowshard::flow_matching
