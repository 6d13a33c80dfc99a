// Parameters as slots. A model owns Parameters, never bare weight tensors; whoever shards, adapts or
// quantizes a model changes what the slots hold and the model does not notice. Used by one thread at a time
// (a model's own thread or its autograd thread, never both).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "nn/low_rank.h"

namespace flowshard::nn {

/// One named tensor of a model.
class Parameter {
 public:
  /// `name` is the full name in the model: "double_blocks.0.img_attn.qkv.weight".
  Parameter(std::string name, std::vector<int64_t> shape) : name(std::move(name)), shape(std::move(shape)) {}
  Parameter(const Parameter&) = delete;
  Parameter& operator=(const Parameter&) = delete;

  const std::string name;
  const std::vector<int64_t> shape;

  /// [shape]. Undefined while the parameter is not materialized (before loading, or sharded away between
  /// uses).
  at::Tensor value;

  /// [shape], where backward writes. Whoever owns the buffer sets it (fsdp: a slice of a flat buffer); if it
  /// is undefined when a gradient arrives, it is allocated.
  at::Tensor grad;

  /// False: the next gradient overwrites `grad`. True: it is added. Cleared by zero_grad().
  bool grad_written = false;

  /// Whether backward computes a gradient for this parameter.
  bool trainable = false;

  /// For a linear's weight: whether an input that is given as a recipe is computed again in backward instead
  /// of kept (nn/linear.h).
  bool recompute_input = false;

  /// What adapters add to the product with this weight, in this order; read by linear().
  std::vector<LowRankTerm> low_rank;

  int64_t numel() const;
  void zero_grad() { grad_written = false; }

  /// Writes or adds `gradient` ([shape], any float dtype) to `grad`.
  void accumulate_grad(const at::Tensor& gradient);

  /// An empty tensor that requires grad exactly if the parameter is trainable. Operations take it as an input
  /// so that autograd records them even if no other input requires grad; its own gradient is always
  /// undefined.
  at::Tensor autograd_handle() const;
};

/// Parameters that are gathered and released together: one per block, and one for what lies outside the
/// blocks.
struct ParameterGroup {
  std::string name;                    // "double_blocks.0"; "" for the root group
  std::vector<Parameter*> parameters;  // in order of construction; owned by the model
};

/// Allocates the value of every parameter, of the given dtype and device; the contents are undefined.
void materialize(const std::vector<Parameter*>& parameters, const at::TensorOptions& options);

}  // namespace flowshard::nn
