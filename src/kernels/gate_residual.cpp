#include "kernels/gate_residual.h"

#include <torch/csrc/autograd/custom_function.h>

#include "kernels/device.h"

namespace flowshard::kernels {
namespace {

void check_arguments(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate) {
  TORCH_CHECK(x.dim() == 3 && x.sizes() == y.sizes(), "gate_residual: x and y must be [B, L, D], got ",
              x.sizes(), " and ", y.sizes());
  TORCH_CHECK(gate.dim() == 2 && gate.size(0) == x.size(0) && gate.size(1) == x.size(2),
              "gate_residual: gate must be [B, D] for x ", x.sizes(), ", got ", gate.sizes());
  for (const at::Tensor& other : {y, gate})
    TORCH_CHECK(other.scalar_type() == x.scalar_type() && other.device() == x.device(),
                "gate_residual: x is ", x.scalar_type(), " on ", x.device(), ", y or gate ",
                other.scalar_type(), " on ", other.device());
}

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

struct GateResidualFunction : torch::autograd::Function<GateResidualFunction> {
  static Variable forward(AutogradContext* context, const Variable& x, const Variable& y,
                          const Variable& gate) {
    const at::Tensor out = at::empty_like(x);
    cuda::run(cuda::GateResidualForward{.type = cuda::element_type(x),
                                        .x = x.const_data_ptr(),
                                        .y = y.const_data_ptr(),
                                        .gate = gate.const_data_ptr(),
                                        .out = out.mutable_data_ptr(),
                                        .batch = x.size(0),
                                        .tokens = x.size(1),
                                        .channels = x.size(2)},
              x.device());
    context->save_for_backward({y, gate});
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list grad_outputs) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &y = saved[0], &gate = saved[1];
    const int64_t batch = y.size(0), tokens = y.size(1), channels = y.size(2);
    const at::Tensor grad_out = cuda::dense(grad_outputs[0]);
    const at::Tensor grad_y = at::empty_like(y);
    at::Tensor partials, grad_gate;
    if (context->needs_input_grad(2)) {
      partials = cuda::empty_float(y, {batch, cuda::row_parts(batch, tokens), channels});
      grad_gate = at::empty_like(gate);
    }
    cuda::run(cuda::GateResidualBackward{.type = cuda::element_type(y),
                                         .grad_out = grad_out.const_data_ptr(),
                                         .y = y.const_data_ptr(),
                                         .gate = gate.const_data_ptr(),
                                         .grad_y = grad_y.mutable_data_ptr(),
                                         .partials = cuda::float_data(partials),
                                         .batch = batch,
                                         .tokens = tokens,
                                         .channels = channels},
              y.device());
    if (grad_gate.defined()) cuda::sum_columns(partials, grad_gate);
    return {grad_outputs[0], grad_y, grad_gate};
  }
};

}  // namespace

at::Tensor reference::gate_residual(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate) {
  check_arguments(x, y, gate);
  return x + gate.unsqueeze(1) * y;
}

at::Tensor gate_residual(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate) {
  if (!cuda::takes(x) || x.numel() == 0 || x.size(2) % 8 != 0 || x.size(2) > cuda::kMaxChannels)
    return reference::gate_residual(x, y, gate);
  check_arguments(x, y, gate);
  return GateResidualFunction::apply(cuda::dense(x), cuda::dense(y), cuda::dense(gate));
}

}  // namespace flowshard::kernels
