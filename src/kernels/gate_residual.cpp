#include "kernels/gate_residual.h"

namespace flowshard::kernels {
namespace {

void check_arguments(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate) {
  TORCH_CHECK(x.dim() == 3 && x.sizes() == y.sizes(), "gate_residual: x and y must be [B, L, D], got ",
              x.sizes(), " and ", y.sizes());
  TORCH_CHECK(gate.dim() == 2 && gate.size(0) == x.size(0) && gate.size(1) == x.size(2),
              "gate_residual: gate must be [B, D] for x ", x.sizes(), ", got ", gate.sizes());
  TORCH_CHECK(x.scalar_type() == y.scalar_type() && x.scalar_type() == gate.scalar_type(),
              "gate_residual: x is ", x.scalar_type(), ", y ", y.scalar_type(), ", gate ",
              gate.scalar_type());
}

}  // namespace

at::Tensor reference::gate_residual(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate) {
  check_arguments(x, y, gate);
  return x + gate.unsqueeze(1) * y;
}

at::Tensor gate_residual(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate) {
  return reference::gate_residual(x, y, gate);
}

}  // namespace flowshard::kernels
