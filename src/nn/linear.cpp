#include "nn/linear.h"

#include <torch/csrc/autograd/custom_function.h>

#include "core/error.h"

namespace flowshard::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

void write_weight_grad(Parameter& weight, const at::Tensor& grad_output, const at::Tensor& x) {
  // Straight into the slot: the flat gradient buffer is the output of the matrix product.
  if (!weight.grad.defined()) {
    weight.grad = at::empty(weight.shape, weight.value.options());
    weight.grad_written = false;
  }
  const at::ScalarType type = weight.grad.scalar_type();
  if (x.is_cuda() && type == at::kFloat && at::isReducedFloatingType(x.scalar_type())) {
    // The product sums in fp32 and writes what it summed: nothing is rounded to bf16 or fp16 between.
    if (weight.grad_written) {
      at::addmm_out(weight.grad, weight.grad, grad_output.t(), x, type);
    } else {
      at::mm_out(weight.grad, grad_output.t(), x, type);
    }
  } else {
    // The CPU has no such product; wider factors give the same.
    const at::Tensor grad_rows = grad_output.t().to(type), x_rows = x.to(type);
    if (weight.grad_written) {
      weight.grad.addmm_(grad_rows, x_rows);
    } else {
      at::mm_out(weight.grad, grad_rows, x_rows);
    }
  }
  weight.grad_written = true;
}

/// Sums the rows in the precision of the slot's gradient.
void write_bias_grad(Parameter& bias, const at::Tensor& grad_output) {
  const at::ScalarType type = bias.grad.defined() ? bias.grad.scalar_type() : bias.value.scalar_type();
  bias.accumulate_grad(grad_output.sum(0, /*keepdim=*/false, type));
}

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  // [Note: handles] The handles are inputs only so that autograd records the node; backward returns nothing
  // for them.
  static Variable forward(AutogradContext* context, const Variable& x, const Variable& weight_handle,
                          const Variable& bias_handle, int64_t weight_slot, int64_t bias_slot,
                          const Recipe& x_recipe) {
    (void)weight_handle, (void)bias_handle;
    const auto* weight = reinterpret_cast<Parameter*>(weight_slot);
    const auto* bias = reinterpret_cast<Parameter*>(bias_slot);
    // A frozen weight needs no input in backward.
    if (weight->trainable) context->save_for_backward(x_recipe.make ? x_recipe.inputs : variable_list{x});
    context->saved_data["make_x"] = reinterpret_cast<int64_t>(x_recipe.make);
    context->saved_data["weight"] = weight_slot;
    context->saved_data["bias"] = bias_slot;
    context->saved_data["x_needs_grad"] = x.requires_grad();
    return at::linear(x, weight->value, bias ? bias->value : at::Tensor());
  }

  static variable_list backward(AutogradContext* context, variable_list grad_outputs) {
    auto* weight = reinterpret_cast<Parameter*>(context->saved_data["weight"].toInt());
    auto* bias = reinterpret_cast<Parameter*>(context->saved_data["bias"].toInt());
    const at::Tensor grad_output = grad_outputs[0].reshape({-1, weight->shape[0]});
    if (weight->trainable) {
      const at::Tensor x = saved_input(context);
      write_weight_grad(*weight, grad_output, x.reshape({-1, weight->shape[1]}));
    }
    if (bias && bias->trainable) write_bias_grad(*bias, grad_output);
    at::Tensor grad_x;
    if (context->saved_data["x_needs_grad"].toBool()) {
      std::vector<int64_t> shape = grad_outputs[0].sizes().vec();
      shape.back() = weight->shape[1];
      grad_x = at::mm(grad_output, weight->value).view(shape);
    }
    return {grad_x, Variable(), Variable(), Variable(), Variable(), Variable()};
  }

  static at::Tensor saved_input(AutogradContext* context) {
    const at::NoGradGuard no_grad;
    const variable_list saved = context->get_saved_variables();
    const int64_t make = context->saved_data["make_x"].toInt();
    return make == 0 ? saved[0] : reinterpret_cast<decltype(Recipe::make)>(make)(saved);
  }
};

struct UseCopyFunction : torch::autograd::Function<UseCopyFunction> {
  static Variable forward(AutogradContext* context, const Variable& handle, int64_t slot) {
    (void)handle;
    context->saved_data["slot"] = slot;
    return reinterpret_cast<Parameter*>(slot)->value.clone();
  }
  static variable_list backward(AutogradContext* context, variable_list grad_outputs) {
    reinterpret_cast<Parameter*>(context->saved_data["slot"].toInt())->accumulate_grad(grad_outputs[0]);
    return {Variable(), Variable()};
  }
};

/// Applies `term` to y [N, O] in place; x [N, I]. The product goes straight into the rows of y.
void add_term(const LowRankTerm& term, const at::Tensor& x, const at::Tensor& y, const Parameter* bias) {
  const at::Tensor part = y.narrow(1, term.row, term.up.size(0));
  const at::Tensor reduced = at::mm(x, term.down.t()).mul_(term.scale);  // [N, r]
  if (!term.row_scale.defined()) {
    part.addmm_(reduced, term.up.t());
    return;
  }
  const at::Tensor offset = bias ? bias->value.narrow(0, term.row, part.size(1)) : at::Tensor();
  if (bias) part.sub_(offset);
  part.addmm_(reduced, term.up.t()).mul_(term.row_scale);
  if (bias) part.add_(offset);
}

at::Tensor linear_without_grad(const at::Tensor& x, const Parameter& weight, const Parameter* bias) {
  at::Tensor y = at::linear(x, weight.value, bias ? bias->value : at::Tensor());
  if (weight.low_rank.empty()) return y;
  y = y.contiguous();
  const at::Tensor x_rows = x.reshape({-1, weight.shape[1]}), y_rows = y.view({-1, weight.shape[0]});
  for (const LowRankTerm& term : weight.low_rank) add_term(term, x_rows, y_rows, bias);
  return y;
}

/// `x_recipe`: kept in place of x, unless empty.
at::Tensor linear_keeping(const at::Tensor& x, const Recipe& x_recipe, Parameter& weight, Parameter* bias) {
  if (!at::GradMode::is_enabled()) return linear_without_grad(x, weight, bias);
  check(weight.low_rank.empty(), "low-rank terms are for inference: gradients must be off");
  return LinearFunction::apply(x, weight.autograd_handle(), bias ? bias->autograd_handle() : at::Tensor(),
                               reinterpret_cast<int64_t>(&weight), reinterpret_cast<int64_t>(bias), x_recipe);
}

}  // namespace

at::Tensor linear(const at::Tensor& x, Parameter& weight, Parameter* bias) {
  return linear_keeping(x, {}, weight, bias);
}

at::Tensor linear(const Recipe& recipe, Parameter& weight, Parameter* bias) {
  return linear_keeping(recipe(), weight.recompute_input ? recipe : Recipe{}, weight, bias);
}

at::Tensor use_copy(Parameter& parameter) {
  if (!at::GradMode::is_enabled()) return parameter.value;
  if (!parameter.trainable) return parameter.value.clone();  // the value may be gone when backward reads it
  return UseCopyFunction::apply(parameter.autograd_handle(), reinterpret_cast<int64_t>(&parameter));
}

Linear::Linear(ParameterGroup& group, const std::string& name, int64_t in_features, int64_t out_features,
               bool has_bias)
    : weight(name + ".weight", {out_features, in_features}) {
  group.parameters.push_back(&weight);
  if (has_bias) {
    bias.emplace(name + ".bias", std::vector<int64_t>{out_features});
    group.parameters.push_back(&*bias);
  }
}

}  // namespace flowshard::nn
