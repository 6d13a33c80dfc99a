#include "kernels/attention.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

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

/// Whether at::scaled_dot_product_attention takes the CPU's fused kernel.
bool fits_cpu(const at::Tensor& q) { return q.is_cpu() && q.numel() > 0 && q.stride(3) == 1; }

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

/// The fused kernels, without autograd.
struct FusedAttention {
  at::Tensor out, logsumexp, seed = {}, offset = {};

  static FusedAttention forward(const JointQkv& in) {
    if (in.q.is_cpu()) {
      const auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(in.q, in.k, in.v);
      return {out, logsumexp};
    }
    const auto result = at::_scaled_dot_product_cudnn_attention(
        with_dense_heads(in.q), with_dense_heads(in.k), with_dense_heads(in.v), /*attn_bias=*/{},
        /*compute_log_sumexp=*/true);
    return {std::get<0>(result), std::get<1>(result), std::get<6>(result), std::get<7>(result)};
  }

  /// Gradients of q, k and v.
  variable_list backward(const at::Tensor& grad, const JointQkv& in) const {
    std::tuple<at::Tensor, at::Tensor, at::Tensor> grads;
    if (in.q.is_cpu()) {
      grads = at::_scaled_dot_product_flash_attention_for_cpu_backward(grad, in.q, in.k, in.v, out, logsumexp,
                                                                       /*dropout_p=*/0, /*is_causal=*/false);
    } else {
      // [Note: gradients for cuDNN]
      grads = at::_scaled_dot_product_cudnn_attention_backward(
          grad.contiguous(), with_dense_heads(in.q), with_dense_heads(in.k), with_dense_heads(in.v), out,
          logsumexp, seed, offset, /*attn_bias=*/{}, /*cum_seq_q=*/{}, /*cum_seq_k=*/{}, in.q.size(2),
          in.k.size(2), /*dropout_p=*/0, /*is_causal=*/false);
    }
    return {std::get<0>(grads), std::get<1>(grads), std::get<2>(grads)};
  }
};

std::vector<QkvStream> streams_of(const variable_list& tensors) {
  std::vector<QkvStream> streams;
  for (size_t i = 0; i + 2 < tensors.size(); i += 3)
    streams.push_back({tensors[i], tensors[i + 1], tensors[i + 2]});
  return streams;
}

struct AttentionOfStreams : torch::autograd::Function<AttentionOfStreams> {
  // tensors: qkv, q_scale, k_scale of each stream.
  static Variable forward(AutogradContext* context, at::TensorList tensors, const at::Tensor& cos,
                          const at::Tensor& sin) {
    const FusedAttention fused = FusedAttention::forward(qk_norm_rope(streams_of(tensors.vec()), cos, sin));
    variable_list saved = tensors.vec();
    saved.insert(saved.end(), {cos, sin, fused.out, fused.logsumexp, fused.seed, fused.offset});
    context->save_for_backward(std::move(saved));
    return fused.out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grad_outputs) {
    variable_list saved = context->get_saved_variables(), leaves, trained;
    const auto rest = saved.end() - 6;
    for (auto tensor = saved.begin(); tensor != rest; ++tensor) {
      leaves.push_back(tensor->detach().set_requires_grad(tensor->requires_grad()));
      if (leaves.back().requires_grad()) trained.push_back(leaves.back());
    }
    const at::AutoGradMode enable_grad(true);
    const JointQkv in = qk_norm_rope(streams_of(leaves), rest[0], rest[1]);
    variable_list grads_of_in;
    {
      const at::NoGradGuard no_grad;
      grads_of_in = FusedAttention{rest[2], rest[3], rest[4], rest[5]}.backward(grad_outputs[0], in);
    }
    const variable_list grads = torch::autograd::grad({in.q, in.k, in.v}, trained, grads_of_in);
    variable_list result;
    auto grad = grads.begin();
    for (const Variable& leaf : leaves) result.push_back(leaf.requires_grad() ? *grad++ : Variable());
    result.insert(result.end(), {Variable(), Variable()});  // cos, sin
    return result;
  }
};

}  // namespace

at::Tensor attention_of_streams(const std::vector<QkvStream>& streams, const at::Tensor& cos,
                                const at::Tensor& sin) {
  TORCH_CHECK(!streams.empty() && streams[0].qkv.dim() == 5, "attention: streams must be [B, L, 3, H, Dh]");
  // As a query [B, H, L, Dh]; all streams have its type and heads.
  const at::Tensor like = streams[0].qkv.select(2, 0).transpose(1, 2);
  const bool is_fused = fits_cudnn(like, like) || fits_cpu(like);
  if (!at::GradMode::is_enabled() || !is_fused) {
    const JointQkv joint = qk_norm_rope(streams, cos, sin);
    return attention(joint.q, joint.k, joint.v);
  }
  variable_list tensors;
  for (const QkvStream& stream : streams)
    tensors.insert(tensors.end(), {stream.qkv, stream.q_scale, stream.k_scale});
  return AttentionOfStreams::apply(at::TensorList(tensors), cos, sin);
}

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
  // [Note: gradients for cuDNN] Its backward returns wrong gradients, without a word, for an incoming
  // gradient that is not contiguous as [B, H, L, Dh]: the layout that every merge of heads produces.
  if (out.is_cuda() && out.requires_grad())
    out.register_hook([](const at::Tensor& grad) { return grad.contiguous(); });
  return out;
}

}  // namespace flowshard::kernels
