#include "kernels/attention.h"

namespace flowshard::kernels {
namespace {

bool fits_cudnn(const at::Tensor& q) {
  const bool half = q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf;
  return q.is_cuda() && half && q.size(3) % 8 == 0 && q.size(3) <= 128;
}

}  // namespace

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  TORCH_CHECK(q.dim() == 4 && k.dim() == 4 && k.sizes() == v.sizes() && q.size(0) == k.size(0) &&
                  q.size(1) == k.size(1) && q.size(3) == k.size(3),
              "attention: q, k, v must be [B, H, L, Dh], got ", q.sizes(), ", ", k.sizes(), ", ", v.sizes());
  if (!fits_cudnn(q)) return at::scaled_dot_product_attention(q, k, v);

  const bool keep_logsumexp =
      at::GradMode::is_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad());
  const at::Tensor out =
      std::get<0>(at::_scaled_dot_product_cudnn_attention(q, k, v, /*attn_bias=*/{}, keep_logsumexp));
  // cuDNN's backward returns wrong gradients, without a word, for an incoming gradient that is not contiguous
  // as [B, H, L, Dh]: the layout that every merge of heads produces.
  if (out.requires_grad()) out.register_hook([](const at::Tensor& grad) { return grad.contiguous(); });
  return out;
}

}  // namespace flowshard::kernels
