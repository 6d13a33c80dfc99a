#include "kernels/qk_norm_rope.h"

#include <torch/csrc/autograd/custom_function.h>

#include "kernels/device.h"

namespace flowshard::kernels {
namespace {

void check_stream(const QkvStream& stream, const at::Tensor& first) {
  const at::Tensor& qkv = stream.qkv;
  TORCH_CHECK(qkv.dim() == 5 && qkv.size(2) == 3 && qkv.size(4) % 2 == 0,
              "qk_norm_rope: qkv must be [B, L, 3, H, Dh] with even Dh, got ", qkv.sizes());
  TORCH_CHECK(qkv.size(0) == first.size(0) && qkv.size(3) == first.size(3) && qkv.size(4) == first.size(4) &&
                  qkv.scalar_type() == first.scalar_type() && qkv.device() == first.device(),
              "qk_norm_rope: streams differ: ", first.sizes(), " and ", qkv.sizes());
  for (const at::Tensor& scale : {stream.q_scale, stream.k_scale}) {
    TORCH_CHECK(scale.dim() == 1 && scale.size(0) == qkv.size(4),
                "qk_norm_rope: scales must be [Dh] for qkv ", qkv.sizes(), ", got ", scale.sizes());
    TORCH_CHECK(scale.scalar_type() == qkv.scalar_type() && scale.device() == qkv.device(),
                "qk_norm_rope: qkv is ", qkv.scalar_type(), " on ", qkv.device(), ", a scale ",
                scale.scalar_type(), " on ", scale.device());
  }
}

at::ScalarType math_type(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

void check_arguments(const std::vector<QkvStream>& streams, const at::Tensor& cos, const at::Tensor& sin) {
  TORCH_CHECK(!streams.empty(), "qk_norm_rope: no stream");
  const at::Tensor& first = streams.front().qkv;
  int64_t length = 0;
  for (const QkvStream& stream : streams) {
    check_stream(stream, first);
    length += stream.qkv.size(1);
  }
  for (const at::Tensor& table : {cos, sin}) {
    TORCH_CHECK(table.dim() == 2 && table.size(0) == length && table.size(1) == first.size(4) / 2,
                "qk_norm_rope: cos and sin must be [", length, ", ", first.size(4) / 2, "], got ",
                table.sizes());
    TORCH_CHECK(
        table.scalar_type() == math_type(first) && table.device() == first.device() && !table.requires_grad(),
        "qk_norm_rope: cos and sin must be ", math_type(first), " on ", first.device(), " without gradient");
  }
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& scale, double eps) {
  const at::Tensor wide = x.to(math_type(x));
  return (wide * at::rsqrt(wide.square().mean(-1, /*keepdim=*/true) + eps)).to(x.scalar_type()) * scale;
}

/// x [B, L, 2, H, Dh]; each pair of channels is a complex number that is turned by the angle of its token.
at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const at::Tensor turn = at::complex(cos, sin).unsqueeze(1).unsqueeze(1);  // [L, 1, 1, Dh / 2]
  const at::Tensor pairs = at::view_as_complex(x.to(math_type(x)).contiguous().unflatten(-1, {-1, 2}));
  return at::view_as_real(pairs * turn).flatten(-2).to(x.scalar_type());
}

at::Tensor joined(const std::vector<at::Tensor>& streams) {
  return streams.size() == 1 ? streams[0] : at::cat(streams, 1);
}

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

/// qkv [B, L, 3, H, Dh] as the kernels read it: each token's 3 * H * Dh elements dense, tokens evenly spaced
/// over the whole batch. The first columns of a wider linear's output are.
at::Tensor with_dense_tokens(const at::Tensor& qkv) {
  const int64_t head_dim = qkv.size(4), width = qkv.size(3) * head_dim, token_stride = qkv.stride(1);
  const bool fits = qkv.stride(4) == 1 && qkv.stride(3) == head_dim && qkv.stride(2) == width &&
                    token_stride >= 3 * width && token_stride % 8 == 0 &&
                    (qkv.size(0) == 1 || qkv.stride(0) == qkv.size(1) * token_stride) &&
                    cuda::is_aligned(qkv);
  return fits ? qkv : cuda::dense(qkv);
}

/// grad [B, H, L, Dh] as the kernel reads it: heads dense, any other strides.
at::Tensor with_dense_heads(const at::Tensor& grad) {
  const bool fits = grad.stride(3) == 1 && grad.stride(0) % 8 == 0 && grad.stride(1) % 8 == 0 &&
                    grad.stride(2) % 8 == 0 && cuda::is_aligned(grad);
  return fits ? grad : cuda::dense(grad);
}

cuda::HeadStrides head_strides(const at::Tensor& grad) {
  return {.batch = grad.stride(0), .head = grad.stride(1), .token = grad.stride(2)};
}

/// Address of a token of a [B, H, L, Dh] tensor.
char* token_data(const at::Tensor& tensor, int64_t token) {
  return static_cast<char*>(tensor.data_ptr()) + token * tensor.stride(2) * tensor.element_size();
}

struct QkNormRopeFunction : torch::autograd::Function<QkNormRopeFunction> {
  // tensors: qkv, q_scale, k_scale of each stream.
  static variable_list forward(AutogradContext* context, at::TensorList tensors, const at::Tensor& cos,
                               const at::Tensor& sin, double eps) {
    const at::Tensor& first = tensors[0];
    const int64_t batch = first.size(0), joint_tokens = cos.size(0), heads = first.size(3);
    const int64_t head_dim = first.size(4);
    const auto empty_heads = [&] {  // [B, H, L, Dh], in memory [B, L, H, Dh]
      return at::empty_strided({batch, heads, joint_tokens, head_dim},
                               {joint_tokens * heads * head_dim, head_dim, heads * head_dim, 1},
                               first.options());
    };
    const at::Tensor q = empty_heads(), k = empty_heads(), v = empty_heads();
    int64_t token = 0;
    for (size_t i = 0; i < tensors.size(); i += 3) {
      const at::Tensor& qkv = tensors[i];
      if (qkv.size(1) == 0) continue;
      cuda::run(cuda::QkNormRopeForward{.type = cuda::element_type(qkv),
                                        .qkv = qkv.const_data_ptr(),
                                        .q_scale = tensors[i + 1].const_data_ptr(),
                                        .k_scale = tensors[i + 2].const_data_ptr(),
                                        .cos = cos.const_data_ptr<float>() + token * head_dim / 2,
                                        .sin = sin.const_data_ptr<float>() + token * head_dim / 2,
                                        .q = token_data(q, token),
                                        .k = token_data(k, token),
                                        .v = token_data(v, token),
                                        .qkv_token_stride = qkv.stride(1),
                                        .batch = batch,
                                        .tokens = qkv.size(1),
                                        .joint_tokens = joint_tokens,
                                        .heads = heads,
                                        .head_dim = head_dim,
                                        .eps = static_cast<float>(eps)},
                first.device());
      token += qkv.size(1);
    }
    variable_list saved = tensors.vec();
    saved.insert(saved.end(), {cos, sin});
    context->save_for_backward(std::move(saved));
    context->saved_data["eps"] = eps;
    return {q, k, v};
  }

  static variable_list backward(AutogradContext* context, variable_list grad_outputs) {
    const variable_list saved = context->get_saved_variables();
    const size_t num_tensors = saved.size() - 2;
    const at::Tensor &cos = saved[num_tensors], &sin = saved[num_tensors + 1];
    for (at::Tensor& grad : grad_outputs) grad = with_dense_heads(grad);
    variable_list grads;
    int64_t token = 0;
    for (size_t i = 0; i < num_tensors; i += 3) {
      const at::Tensor& qkv = saved[i];
      const bool scales = context->needs_input_grad(i + 1) || context->needs_input_grad(i + 2);
      const StreamGrads out =
          stream_backward({qkv, saved[i + 1], saved[i + 2]}, cos.narrow(0, token, qkv.size(1)),
                          sin.narrow(0, token, qkv.size(1)), grad_outputs, token, scales,
                          context->saved_data["eps"].toDouble());
      grads.insert(grads.end(), {out.qkv, out.q_scale, out.k_scale});
      token += qkv.size(1);
    }
    grads.insert(grads.end(), {Variable(), Variable(), Variable()});  // cos, sin, eps
    return grads;
  }

  struct StreamGrads {
    at::Tensor qkv, q_scale, k_scale;
  };

  /// grads: of q, k and v [B, H, L_joint, Dh]; the stream's rows begin at `token`.
  static StreamGrads stream_backward(const QkvStream& stream, const at::Tensor& cos, const at::Tensor& sin,
                                     const variable_list& grads, int64_t token, bool scales, double eps) {
    const at::Tensor& qkv = stream.qkv;
    const int64_t batch = qkv.size(0), tokens = qkv.size(1), head_dim = qkv.size(4);
    StreamGrads out{at::empty(qkv.sizes(), qkv.options()), {}, {}};
    at::Tensor partials;
    if (scales) {
      out.q_scale = at::zeros_like(stream.q_scale);
      out.k_scale = at::zeros_like(stream.k_scale);
    }
    if (tokens == 0) return out;
    if (scales) partials = cuda::empty_float(qkv, {1, cuda::head_parts(batch, tokens), 2 * head_dim});
    cuda::run(cuda::QkNormRopeBackward{.type = cuda::element_type(qkv),
                                       .qkv = qkv.const_data_ptr(),
                                       .q_scale = stream.q_scale.const_data_ptr(),
                                       .k_scale = stream.k_scale.const_data_ptr(),
                                       .cos = cos.const_data_ptr<float>(),
                                       .sin = sin.const_data_ptr<float>(),
                                       .grad_q = token_data(grads[0], token),
                                       .grad_k = token_data(grads[1], token),
                                       .grad_v = token_data(grads[2], token),
                                       .grad_q_strides = head_strides(grads[0]),
                                       .grad_k_strides = head_strides(grads[1]),
                                       .grad_v_strides = head_strides(grads[2]),
                                       .grad_qkv = out.qkv.mutable_data_ptr(),
                                       .partials = cuda::float_data(partials),
                                       .qkv_token_stride = qkv.stride(1),
                                       .batch = batch,
                                       .tokens = tokens,
                                       .heads = qkv.size(3),
                                       .head_dim = head_dim,
                                       .eps = static_cast<float>(eps)},
              qkv.device());
    if (scales) cuda::sum_columns(partials, out.q_scale, out.k_scale);
    return out;
  }
};

}  // namespace

JointQkv reference::qk_norm_rope(const std::vector<QkvStream>& streams, const at::Tensor& cos,
                                 const at::Tensor& sin, double eps) {
  check_arguments(streams, cos, sin);
  std::vector<at::Tensor> normed, values;
  for (const QkvStream& stream : streams) {
    const at::Tensor scales = at::stack({stream.q_scale, stream.k_scale}).unsqueeze(1);  // [2, 1, Dh]
    // split and unbind: their gradients are joined in one copy, those of narrow and select are added.
    const auto parts = stream.qkv.split_with_sizes({2, 1}, 2);
    normed.push_back(rms_norm(parts[0], scales, eps));
    values.push_back(parts[1].squeeze(2));
  }
  const auto qk = rope(joined(normed), cos, sin).unbind(2);  // of [B, L, 2, H, Dh]
  return {qk[0].transpose(1, 2), qk[1].transpose(1, 2), joined(values).transpose(1, 2)};
}

JointQkv qk_norm_rope(const std::vector<QkvStream>& streams, const at::Tensor& cos, const at::Tensor& sin,
                      double eps) {
  check_arguments(streams, cos, sin);
  const at::Tensor& first = streams.front().qkv;
  const int64_t head_dim = first.size(4);
  if (!cuda::takes(first) || first.numel() == 0 || head_dim % 8 != 0 || head_dim > cuda::kMaxHeadDim)
    return reference::qk_norm_rope(streams, cos, sin, eps);
  variable_list tensors;
  for (const QkvStream& stream : streams) {
    tensors.push_back(with_dense_tokens(stream.qkv));
    tensors.push_back(cuda::dense(stream.q_scale));
    tensors.push_back(cuda::dense(stream.k_scale));
  }
  const variable_list out =
      QkNormRopeFunction::apply(at::TensorList(tensors), cuda::dense(cos), cuda::dense(sin), eps);
  return {out[0], out[1], out[2]};
}

}  // namespace flowshard::kernels
