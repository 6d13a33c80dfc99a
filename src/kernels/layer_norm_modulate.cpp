#include "kernels/layer_norm_modulate.h"

namespace flowshard::kernels {
namespace {

void check_arguments(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale) {
  TORCH_CHECK(x.dim() == 3, "layer_norm_modulate: x must be [B, L, D], got ", x.sizes());
  for (const at::Tensor& modulation : {shift, scale}) {
    TORCH_CHECK(modulation.dim() == 2 && modulation.size(0) == x.size(0) && modulation.size(1) == x.size(2),
                "layer_norm_modulate: shift and scale must be [B, D] for x ", x.sizes(), ", got ",
                modulation.sizes());
    TORCH_CHECK(modulation.scalar_type() == x.scalar_type(), "layer_norm_modulate: x is ", x.scalar_type(),
                ", shift or scale is ", modulation.scalar_type());
  }
}

}  // namespace

at::Tensor reference::layer_norm_modulate(const at::Tensor& x, const at::Tensor& shift,
                                          const at::Tensor& scale, double eps) {
  check_arguments(x, shift, scale);
  return at::layer_norm(x, {x.size(2)}, {}, {}, eps) * (1 + scale).unsqueeze(1) + shift.unsqueeze(1);
}

at::Tensor layer_norm_modulate(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale,
                               double eps) {
  return reference::layer_norm_modulate(x, shift, scale, eps);
}

}  // namespace flowshard::kernels
