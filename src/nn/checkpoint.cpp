#include "nn/checkpoint.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace flowshard::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

struct KeptBlock : torch::CustomClassHolder {
  explicit KeptBlock(const BlockFunction& block) : block(block) {}
  BlockFunction block;
};

struct CheckpointFunction : torch::autograd::Function<CheckpointFunction> {
  // `handle` requires grad if a parameter of the block is trained ([Note: handles] in linear.cpp).
  static variable_list forward(AutogradContext* context, const BlockFunction& block, const Variable& handle,
                               at::TensorList inputs) {
    (void)handle;
    context->save_for_backward(inputs.vec());
    context->saved_data["block"] = c10::IValue::make_capsule(c10::make_intrusive<KeptBlock>(block));
    return block(inputs.vec());
  }

  static variable_list backward(AutogradContext* context, const variable_list& grad_outputs) {
    const at::AutoGradMode enable_grad(true);
    const auto kept = c10::static_intrusive_pointer_cast<KeptBlock>(context->saved_data["block"].toCapsule());
    variable_list inputs;
    for (const Variable& saved : context->get_saved_variables()) {
      inputs.push_back(saved.detach().set_requires_grad(saved.requires_grad()));
    }
    variable_list outputs, grads_of_outputs;
    const Tensors all_outputs = kept->block(inputs);
    for (size_t i = 0; i < all_outputs.size(); ++i) {
      if (!all_outputs[i].requires_grad()) continue;
      outputs.push_back(all_outputs[i]);
      grads_of_outputs.push_back(grad_outputs[i]);
    }
    // Every node runs, those too that lead to no input but write a parameter's gradient into its slot.
    torch::autograd::backward(outputs, grads_of_outputs);
    variable_list grads(2);  // of block and handle
    for (const Variable& input : inputs) grads.push_back(input.grad());
    return grads;
  }
};

}  // namespace

Tensors CheckpointingRunner::run(const ParameterGroup& group, const BlockFunction& block,
                                 const Tensors& inputs) {
  if (!at::GradMode::is_enabled()) return inner_.run(group, block, inputs);
  const bool is_trained = std::any_of(group.parameters.begin(), group.parameters.end(),
                                      [](const Parameter* parameter) { return parameter->trainable; });
  const auto checkpointed = [&block, is_trained](const Tensors& tensors) {
    const at::Tensor handle = at::empty({0}, tensors[0].options()).set_requires_grad(is_trained);
    return CheckpointFunction::apply(block, handle, at::TensorList(tensors));
  };
  return inner_.run(group, checkpointed, inputs);
}

}  // namespace flowshard::nn
