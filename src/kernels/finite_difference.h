// For tests: whether autograd's gradients are the derivatives of what was computed.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <vector>

namespace flowshard::kernels {

using ScalarFunction = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

/// The largest difference between the gradients of `loss` by autograd and by central differences, over every
/// element of every input (fp64), relative to the largest gradient.
inline double gradient_error(const ScalarFunction& loss, const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(input.detach().clone().set_requires_grad(true));
  loss(leaves).backward();

  const at::NoGradGuard no_grad;
  constexpr double kStep = 1e-5;
  double largest_error = 0, largest_gradient = 0;
  for (const at::Tensor& leaf : leaves) {
    const at::Tensor values = leaf.view(-1), gradients = leaf.grad().reshape(-1);
    for (int64_t i = 0; i < values.numel(); ++i) {
      const double original = values[i].item<double>();
      values[i] = original + kStep;
      const double above = loss(leaves).item<double>();
      values[i] = original - kStep;
      const double below = loss(leaves).item<double>();
      values[i] = original;
      const double gradient = gradients[i].item<double>();
      largest_error = std::max(largest_error, std::abs((above - below) / (2 * kStep) - gradient));
      largest_gradient = std::max(largest_gradient, std::abs(gradient));
    }
  }
  return largest_error / largest_gradient;
}

}  // namespace flowshard::kernels
