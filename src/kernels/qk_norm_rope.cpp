#include "kernels/qk_norm_rope.h"

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
    TORCH_CHECK(scale.scalar_type() == qkv.scalar_type(), "qk_norm_rope: qkv is ", qkv.scalar_type(),
                ", a scale is ", scale.scalar_type());
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
    TORCH_CHECK(table.scalar_type() == math_type(first) && !table.requires_grad(),
                "qk_norm_rope: cos and sin must be ", math_type(first), " without gradient");
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

}  // namespace

JointQkv reference::qk_norm_rope(const std::vector<QkvStream>& streams, const at::Tensor& cos,
                                 const at::Tensor& sin, double eps) {
  check_arguments(streams, cos, sin);
  std::vector<at::Tensor> normed, values;
  for (const QkvStream& stream : streams) {
    const at::Tensor scales = at::stack({stream.q_scale, stream.k_scale}).unsqueeze(1);  // [2, 1, Dh]
    normed.push_back(rms_norm(stream.qkv.narrow(2, 0, 2), scales, eps));
    values.push_back(stream.qkv.select(2, 2));
  }
  const at::Tensor qk = rope(at::cat(normed, 1), cos, sin);  // [B, L, 2, H, Dh]
  return {qk.select(2, 0).transpose(1, 2), qk.select(2, 1).transpose(1, 2),
          at::cat(values, 1).transpose(1, 2)};
}

JointQkv qk_norm_rope(const std::vector<QkvStream>& streams, const at::Tensor& cos, const at::Tensor& sin,
                      double eps) {
  return reference::qk_norm_rope(streams, cos, sin, eps);
}

}  // namespace flowshard::kernels
