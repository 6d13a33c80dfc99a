// The linear operation that reads its weight through a parameter slot, in forward and in backward.
// [B, L, I] stands for any leading dimensions.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <string>
#include <vector>

#include "nn/parameter.h"

namespace flowshard::nn {

/// A tensor that is cheap to compute from others: backward may do it again instead of keeping the result.
struct Recipe {
  at::Tensor (*make)(const std::vector<at::Tensor>& inputs);  // the same bits each time; no parameters
  std::vector<at::Tensor> inputs;

  at::Tensor operator()() const { return make(inputs); }
};

/// y = x W^T + b for x [B, L, I], weight [O, I], bias [O] (or null); y [B, L, O] in the dtype of x.
/// Backward needs weight.value again (the block runner provides it) and writes weight.grad and bias->grad
/// directly, without rounding to the dtype of x on the way if they are fp32; only x is saved. A weight that
/// is not trainable costs no gradient work. The weight's low-rank terms are added to y; they are for
/// inference: with them and with gradients enabled, InternalError.
at::Tensor linear(const at::Tensor& x, Parameter& weight, Parameter* bias);

/// The same for x = recipe(). If weight.recompute_input is set, the recipe's inputs are saved in place of x.
at::Tensor linear(const Recipe& recipe, Parameter& weight, Parameter* bias);

/// The parameter's value as a differentiable copy, for small parameters (norm scales) used by ordinary
/// operations. The copy may be saved for backward; its gradient goes to the slot.
at::Tensor use_copy(Parameter& parameter);

/// A linear layer. Registers its parameters, "<name>.weight" [O, I] and "<name>.bias" [O], in `group`.
class Linear {
 public:
  Linear(ParameterGroup& group, const std::string& name, int64_t in_features, int64_t out_features,
         bool has_bias = true);
  at::Tensor forward(const at::Tensor& x) { return linear(x, weight, bias ? &*bias : nullptr); }
  at::Tensor forward(const Recipe& x) { return linear(x, weight, bias ? &*bias : nullptr); }

  Parameter weight;
  std::optional<Parameter> bias;
};

}  // namespace flowshard::nn
