#include "nn/parameter.h"

#include "core/error.h"

namespace flowshard::nn {

int64_t Parameter::numel() const {
  int64_t product = 1;
  for (int64_t size : shape) product *= size;
  return product;
}

void Parameter::accumulate_grad(const at::Tensor& gradient) {
  at::NoGradGuard no_grad;
  if (!grad.defined()) {
    grad = at::empty(shape, value.options());
    grad_written = false;
  }
  if (grad_written) {
    grad.add_(gradient);
  } else {
    grad.copy_(gradient);
    grad_written = true;
  }
}

at::Tensor Parameter::autograd_handle() const {
  check(value.defined(), "parameter " + name + " is used while it is not materialized");
  return at::empty({0}, value.options()).set_requires_grad(trainable);
}

void materialize(const std::vector<Parameter*>& parameters, const at::TensorOptions& options) {
  for (Parameter* parameter : parameters) parameter->value = at::empty(parameter->shape, options);
}

}  // namespace flowshard::nn
