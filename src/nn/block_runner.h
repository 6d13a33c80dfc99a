// The seam between a model and whoever shards it: the model calls each of its blocks through a BlockRunner.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <vector>

#include "nn/parameter.h"

namespace flowshard::nn {

using Tensors = std::vector<at::Tensor>;
using BlockFunction = std::function<Tensors(const Tensors&)>;

class BlockRunner {
 public:
  virtual ~BlockRunner() = default;

  /// Returns block(inputs). While `block` runs, and again while its backward runs, every parameter of `group`
  /// is materialized; outside it may not be. The block reads no differentiable tensor that is not in
  /// `inputs`. With gradients enabled `block` may be copied and called again until backward ends: what it
  /// refers to must live as long.
  virtual Tensors run(const ParameterGroup& group, const BlockFunction& block, const Tensors& inputs) = 0;
};

/// Calls the block: for models whose parameters are always materialized.
class DirectRunner : public BlockRunner {
 public:
  Tensors run(const ParameterGroup&, const BlockFunction& block, const Tensors& inputs) override {
    return block(inputs);
  }
};

}  // namespace flowshard::nn
