#include "kernels/attention.h"

#include "kernels/device.h"

namespace flowshard::kernels {
namespace {

bool fits_cudnn(const at::Tensor& q, const at::Tensor& k) {
  const bool half = q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf;
  return q.is_cuda() && half && q.size(3) % 8 == 0 && q.size(3) <= 128 && k.size(2) > 1 && q.numel() > 0 &&
         !at::globalContext().deterministicAlgorithms();
}

/// `tensor` itself if cuDNN reads its layout: heads dense, and every row at a multiple of 16 bytes.
at::Tensor with_dense_heads(const at::Tensor& tensor) {
  bool fits = tensor.stride(3) == 1 && cuda::is_aligned(tensor);
  for (int64_t dim = 0; dim < 3; ++dim)
    fits = fits && (tensor.size(dim) == 1 || (tensor.stride(dim) > 0 && tensor.stride(dim) % 8 == 0));
  return fits ? tensor : cuda::dense(tensor);
}

}  // namespace

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  TORCH_CHECK(q.dim() == 4 && k.dim() == 4 && k.sizes() == v.sizes() && q.size(0) == k.size(0) &&
                  q.size(1) == k.size(1) && q.size(3) == k.size(3),
              "attention: q, k, v must be [B, H, L, Dh], got ", q.sizes(), ", ", k.sizes(), ", ", v.sizes());
  at::Tensor out;
  if (fits_cudnn(q, k)) {
    const bool keep_logsumexp =
        at::GradMode::is_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad());
    out = std::get<0>(at::_scaled_dot_product_cudnn_attention(
        with_dense_heads(q), with_dense_heads(k), with_dense_heads(v), /*attn_bias=*/{}, keep_logsumexp));
  } else {
    out = at::scaled_dot_product_attention(q, k, v);
  }
  // cuDNN's backward returns wrong gradients, without a word, for an incoming gradient that is not contiguous
  // as [B, H, L, Dh]: the layout that every merge of heads produces.
  if (out.is_cuda() && out.requires_grad())
    out.register_hook([](const at::Tensor& grad) { return grad.contiguous(); });
  return out;
}

}  // namespace flowshard::kernels
