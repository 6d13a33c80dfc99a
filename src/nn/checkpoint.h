// Full activation checkpointing: of a block only the inputs are kept; its backward runs it again.
#pragma once

#include "nn/block_runner.h"

namespace flowshard::nn {

/// Calls blocks through `inner`, each as a block that keeps its inputs alone. The recomputation lies inside
/// what `inner` calls, so that the parameters are there for it as they are for any other backward. Gradients
/// are bitwise those of the plain block if its operations are repeatable: it may use no random numbers.
/// Without gradients nothing changes.
class CheckpointingRunner : public BlockRunner {
 public:
  explicit CheckpointingRunner(BlockRunner& inner) : inner_(inner) {}
  Tensors run(const ParameterGroup& group, const BlockFunction& block, const Tensors& inputs) override;

 private:
  BlockRunner& inner_;
};

}  // namespace flowshard::nn
