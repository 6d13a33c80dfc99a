#include "kernels/adamw.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "kernels/blockwise_quantization.h"
#include "kernels/device.h"
#include "kernels/dynamic_code.h"
#include "kernels/stochastic_rounding.h"

namespace flowshard::kernels {
namespace {

// Elements of the CPU path's temporary tensors: whole blocks of codes.
constexpr int64_t kChunk = 1 << 18;

bool has_codes(const AdamWTensors& tensors) { return tensors.exp_avg.scalar_type() == at::kByte; }

void check_flat(const at::Tensor& tensor, const char* name, const at::Tensor& param, int64_t count) {
  TORCH_CHECK(tensor.defined() && tensor.dim() == 1 && tensor.numel() == count && tensor.is_contiguous() &&
                  tensor.device() == param.device(),
              "adamw_step: ", name, " must be dense, [", count, "] on ", param.device());
}

void check_arguments(const AdamWTensors& tensors, const AdamWOptions& options) {
  const at::Tensor& param = tensors.param;
  const int64_t count = param.numel();
  check_flat(param, "param", param, count);
  check_flat(tensors.grad, "grad", param, count);
  check_flat(tensors.exp_avg, "exp_avg", param, count);
  check_flat(tensors.exp_avg_sq, "exp_avg_sq", param, count);
  for (const at::Tensor& tensor : {param, tensors.grad})
    TORCH_CHECK(tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16,
                "adamw_step: param and grad must be fp32 or bf16, got ", tensor.scalar_type());
  const at::ScalarType moments = tensors.exp_avg.scalar_type();
  TORCH_CHECK((moments == at::kFloat || moments == at::kByte) && tensors.exp_avg_sq.scalar_type() == moments,
              "adamw_step: both moments must be fp32 or uint8 codes, got ", moments, " and ",
              tensors.exp_avg_sq.scalar_type());
  if (has_codes(tensors)) {
    for (const at::Tensor& scale : {tensors.exp_avg_scale, tensors.exp_avg_sq_scale}) {
      check_flat(scale, "the scale of codes", param, num_code_blocks(count));
      TORCH_CHECK(scale.scalar_type() == at::kFloat, "adamw_step: scales must be fp32");
    }
  }
  TORCH_CHECK(options.step >= 1, "adamw_step: steps count from 1, got ", options.step);
  TORCH_CHECK(param.is_cpu() || cuda::takes(param), "adamw_step: no kernel for ", param.device());
}

/// Whether groups of four elements can be read and written at once.
bool takes_groups(const at::Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % (4 * tensor.element_size()) == 0;
}

void step_on_gpu(const AdamWTensors& tensors, const AdamWOptions& options) {
  const double bias1 = 1 - std::pow(options.beta1, options.step);
  const double bias2 = 1 - std::pow(options.beta2, options.step);
  const bool codes = has_codes(tensors);
  cuda::run(cuda::AdamW{.param_type = cuda::element_type(tensors.param),
                        .grad_type = cuda::element_type(tensors.grad),
                        .has_codes = codes,
                        .in_groups = takes_groups(tensors.param) && takes_groups(tensors.grad) &&
                                     takes_groups(tensors.exp_avg) && takes_groups(tensors.exp_avg_sq),
                        .param = tensors.param.mutable_data_ptr(),
                        .grad = tensors.grad.const_data_ptr(),
                        .exp_avg = tensors.exp_avg.mutable_data_ptr(),
                        .exp_avg_sq = tensors.exp_avg_sq.mutable_data_ptr(),
                        .exp_avg_scale = codes ? cuda::float_data(tensors.exp_avg_scale) : nullptr,
                        .exp_avg_sq_scale = codes ? cuda::float_data(tensors.exp_avg_sq_scale) : nullptr,
                        .count = tensors.param.numel(),
                        .first_element = options.first_element,
                        .rounding_key = rounding_key(options.seed, options.step),
                        .grad_scale = static_cast<float>(options.grad_scale),
                        .decay = static_cast<float>(1 - options.lr * options.weight_decay),
                        .beta1 = static_cast<float>(options.beta1),
                        .beta2 = static_cast<float>(options.beta2),
                        .one_minus_beta1 = static_cast<float>(1 - options.beta1),
                        .one_minus_beta2 = static_cast<float>(1 - options.beta2),
                        .step_size = static_cast<float>(options.lr / bias1),
                        .inverse_root_bias2 = static_cast<float>(1 / std::sqrt(bias2)),
                        .eps = static_cast<float>(options.eps)},
            tensors.param.device());
}

/// The moment in fp32: itself, or its codes decoded.
at::Tensor decoded(const at::Tensor& moment, const at::Tensor& scales, CodeKind kind) {
  if (moment.scalar_type() == at::kFloat) return moment;
  at::Tensor values = at::empty(moment.sizes(), at::kFloat);
  dequantize_blockwise(moment, scales, values, kind);
  return values;
}

/// values [N] fp32 to out [N] bf16.
void round_stochastically(const at::Tensor& values, const at::Tensor& out, const AdamWOptions& options) {
  const uint64_t key = rounding_key(options.seed, options.step);
  const auto* from = values.const_data_ptr<float>();
  auto* to = out.mutable_data_ptr<at::BFloat16>();
  at::parallel_for(0, values.numel(), 1 << 14, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end;) {
      uint64_t bits = rounding_bits(key, options.first_element + i);
      for (const int64_t stop = std::min(end, i + 4); i < stop; ++i, bits >>= 16)
        to[i].x = round_to_bf16(from[i], static_cast<uint16_t>(bits));
    }
  });
}

void step_on_cpu(const AdamWTensors& tensors, const AdamWOptions& options) {
  const at::Tensor param = tensors.param.to(at::kFloat);
  const at::Tensor exp_avg = decoded(tensors.exp_avg, tensors.exp_avg_scale, CodeKind::kSigned);
  const at::Tensor exp_avg_sq = decoded(tensors.exp_avg_sq, tensors.exp_avg_sq_scale, CodeKind::kUnsigned);
  at::Tensor grad = tensors.grad.to(at::kFloat);
  if (options.grad_scale != 1) grad = grad.mul(options.grad_scale);
  const at::Tensor step = at::full({}, static_cast<double>(options.step), at::kFloat);
  at::_fused_adamw_(param, grad, exp_avg, exp_avg_sq, /*max_exp_avg_sqs=*/{}, step, options.lr, options.beta1,
                    options.beta2, options.weight_decay, options.eps, /*amsgrad=*/false, /*maximize=*/false);
  if (has_codes(tensors)) {
    quantize_blockwise(exp_avg, tensors.exp_avg, tensors.exp_avg_scale, CodeKind::kSigned);
    quantize_blockwise(exp_avg_sq, tensors.exp_avg_sq, tensors.exp_avg_sq_scale, CodeKind::kUnsigned);
  }
  if (tensors.param.scalar_type() == at::kBFloat16) round_stochastically(param, tensors.param, options);
}

}  // namespace

void adamw_step(const AdamWTensors& tensors, const AdamWOptions& options) {
  const at::NoGradGuard no_grad;
  check_arguments(tensors, options);
  if (tensors.param.is_cuda()) return step_on_gpu(tensors, options);
  for (int64_t first = 0; first < tensors.param.numel(); first += kChunk) {
    const auto part = [first](const at::Tensor& tensor, int64_t each = 1) {
      return tensor.defined()
                 ? tensor.slice(0, first / each, std::min(tensor.numel(), (first + kChunk) / each))
                 : tensor;
    };
    AdamWOptions options_of_part = options;
    options_of_part.first_element += first;
    step_on_cpu({part(tensors.param), part(tensors.grad), part(tensors.exp_avg), part(tensors.exp_avg_sq),
                 part(tensors.exp_avg_scale, kCodeBlock), part(tensors.exp_avg_sq_scale, kCodeBlock)},
                options_of_part);
  }
}

}  // namespace flowshard::kernels
