#include "kernels/layer_norm_modulate.h"

#include <torch/csrc/autograd/custom_function.h>

#include "kernels/device.h"

namespace flowshard::kernels {
namespace {

void check_arguments(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale) {
  TORCH_CHECK(x.dim() == 3, "layer_norm_modulate: x must be [B, L, D], got ", x.sizes());
  for (const at::Tensor& modulation : {shift, scale}) {
    TORCH_CHECK(modulation.dim() == 2 && modulation.size(0) == x.size(0) && modulation.size(1) == x.size(2),
                "layer_norm_modulate: shift and scale must be [B, D] for x ", x.sizes(), ", got ",
                modulation.sizes());
    TORCH_CHECK(modulation.scalar_type() == x.scalar_type() && modulation.device() == x.device(),
                "layer_norm_modulate: x is ", x.scalar_type(), " on ", x.device(), ", shift or scale ",
                modulation.scalar_type(), " on ", modulation.device());
  }
}

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

struct Normed {
  at::Tensor y;           // [B, L, D]
  at::Tensor mean, rstd;  // [B, L] fp32; undefined unless they are kept
};

Normed forward_on_gpu(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale, double eps,
                      bool keep_statistics) {
  Normed out{at::empty_like(x), {}, {}};
  if (keep_statistics) {
    out.mean = cuda::empty_float(x, {x.size(0), x.size(1)});
    out.rstd = at::empty_like(out.mean);
  }
  cuda::run(cuda::LayerNormModulateForward{.type = cuda::element_type(x),
                                           .x = x.const_data_ptr(),
                                           .shift = shift.const_data_ptr(),
                                           .scale = scale.const_data_ptr(),
                                           .y = out.y.mutable_data_ptr(),
                                           .mean = cuda::float_data(out.mean),
                                           .rstd = cuda::float_data(out.rstd),
                                           .batch = x.size(0),
                                           .tokens = x.size(1),
                                           .channels = x.size(2),
                                           .eps = static_cast<float>(eps)},
            x.device());
  return out;
}

struct LayerNormModulateFunction : torch::autograd::Function<LayerNormModulateFunction> {
  static Variable forward(AutogradContext* context, const Variable& x, const Variable& shift,
                          const Variable& scale, double eps) {
    Normed out = forward_on_gpu(x, shift, scale, eps, /*keep_statistics=*/true);
    context->save_for_backward({x, scale, out.mean, out.rstd});
    return out.y;
  }

  static variable_list backward(AutogradContext* context, variable_list grad_outputs) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &scale = saved[1], &mean = saved[2], &rstd = saved[3];
    const int64_t batch = x.size(0), tokens = x.size(1), channels = x.size(2);
    const bool modulation = context->needs_input_grad(1) || context->needs_input_grad(2);
    const at::Tensor grad_y = cuda::dense(grad_outputs[0]);
    const at::Tensor grad_x = at::empty_like(x);
    at::Tensor partials, grad_shift, grad_scale;
    if (modulation) {
      partials = cuda::empty_float(x, {batch, cuda::row_parts(batch, tokens), 2 * channels});
      grad_shift = at::empty_like(scale);
      grad_scale = at::empty_like(scale);
    }
    cuda::run(cuda::LayerNormModulateBackward{.type = cuda::element_type(x),
                                              .grad_y = grad_y.const_data_ptr(),
                                              .x = x.const_data_ptr(),
                                              .scale = scale.const_data_ptr(),
                                              .mean = cuda::float_data(mean),
                                              .rstd = cuda::float_data(rstd),
                                              .grad_x = grad_x.mutable_data_ptr(),
                                              .partials = cuda::float_data(partials),
                                              .batch = batch,
                                              .tokens = tokens,
                                              .channels = channels},
              x.device());
    if (modulation) cuda::sum_columns(partials, grad_shift, grad_scale);
    return {grad_x, grad_shift, grad_scale, Variable()};
  }
};

}  // namespace

at::Tensor reference::layer_norm_modulate(const at::Tensor& x, const at::Tensor& shift,
                                          const at::Tensor& scale, double eps) {
  check_arguments(x, shift, scale);
  return at::layer_norm(x, {x.size(2)}, {}, {}, eps) * (1 + scale).unsqueeze(1) + shift.unsqueeze(1);
}

at::Tensor layer_norm_modulate(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale,
                               double eps) {
  if (!cuda::takes(x) || x.numel() == 0 || x.size(2) % 8 != 0 || x.size(2) > cuda::kMaxChannels)
    return reference::layer_norm_modulate(x, shift, scale, eps);
  check_arguments(x, shift, scale);
  const at::Tensor dense_x = cuda::dense(x), dense_shift = cuda::dense(shift),
                   dense_scale = cuda::dense(scale);
  if (!at::GradMode::is_enabled())
    return forward_on_gpu(dense_x, dense_shift, dense_scale, eps, /*keep_statistics=*/false).y;
  return LayerNormModulateFunction::apply(dense_x, dense_shift, dense_scale, eps);
}

}  // namespace flowshard::kernels
