#include "kernels/linear_gelu.h"

#include "kernels/device.h"

namespace flowshard::kernels {
namespace {

constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;  // what cuBLASLt wants on Hopper

void check_arguments(const at::Tensor& out, const at::Tensor& x, const at::Tensor& weight,
                     const at::Tensor& bias) {
  TORCH_CHECK(
      weight.dim() == 2 && x.size(-1) == weight.size(1) && bias.dim() == 1 && bias.size(0) == weight.size(0),
      "linear_gelu: x ", x.sizes(), ", weight ", weight.sizes(), " and bias ", bias.sizes(), " do not fit");
  TORCH_CHECK(out.size(-1) == weight.size(0) && out.numel() / out.size(-1) == x.numel() / x.size(-1),
              "linear_gelu: out ", out.sizes(), " does not fit x ", x.sizes(), " and weight ",
              weight.sizes());
  for (const at::Tensor& tensor : {out, weight, bias}) {
    TORCH_CHECK(tensor.scalar_type() == x.scalar_type() && tensor.device() == x.device(),
                "linear_gelu: x is ", x.scalar_type(), " on ", x.device(), ", another tensor ",
                tensor.scalar_type(), " on ", tensor.device());
  }
}

/// Distance of the rows of [..., O] if they lie evenly and dense, else 0.
int64_t row_stride(const at::Tensor& tensor) {
  const int64_t stride = tensor.stride(-2);
  bool even =
      tensor.stride(-1) == 1 && stride % 8 == 0 && stride >= tensor.size(-1) && cuda::is_aligned(tensor);
  for (int64_t dim = 0; dim < tensor.dim() - 2; ++dim) {
    even = even &&
           (tensor.size(dim) == 1 || tensor.stride(dim) == tensor.stride(dim + 1) * tensor.size(dim + 1));
  }
  return even ? stride : 0;
}

bool fits_kernel(const at::Tensor& out, const at::Tensor& x, const at::Tensor& weight,
                 const at::Tensor& bias) {
  return cuda::takes(x) && x.scalar_type() == at::kBFloat16 && x.dim() >= 2 && out.dim() >= 2 &&
         x.numel() > 0 && weight.size(0) % 8 == 0 && weight.size(1) % 8 == 0 && row_stride(out) > 0 &&
         row_stride(x) > 0 && row_stride(weight) > 0 && bias.is_contiguous() && cuda::is_aligned(bias);
}

}  // namespace

at::Tensor reference::linear_gelu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return at::gelu(at::linear(x, weight, bias), "tanh");
}

void linear_gelu_out(const at::Tensor& out, const at::Tensor& x, const at::Tensor& weight,
                     const at::Tensor& bias) {
  check_arguments(out, x, weight, bias);
  if (!fits_kernel(out, x, weight, bias)) {
    out.copy_(reference::linear_gelu(x, weight, bias));
    return;
  }
  const at::Tensor workspace = at::empty({kWorkspaceBytes}, x.options().dtype(at::kByte));
  cuda::run(cuda::LinearGelu{.x = x.const_data_ptr(),
                             .weight = weight.const_data_ptr(),
                             .bias = bias.const_data_ptr(),
                             .y = out.mutable_data_ptr(),
                             .workspace = workspace.mutable_data_ptr(),
                             .workspace_bytes = kWorkspaceBytes,
                             .rows = x.numel() / x.size(-1),
                             .inputs = weight.size(1),
                             .outputs = weight.size(0),
                             .x_row_stride = row_stride(x),
                             .weight_row_stride = row_stride(weight),
                             .y_row_stride = row_stride(out)},
            x.device());
}

at::Tensor linear_gelu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  const at::Tensor out = at::empty(sizes, x.options());
  linear_gelu_out(out, x, weight, bias);
  return out;
}

}  // namespace flowshard::kernels
