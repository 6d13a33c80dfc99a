// Activation checkpointing, applied to a model from outside: what its blocks keep between forward and
// backward, and what backward computes again. Gradients are bitwise the same in every mode on a CPU.
#pragma once

#include <vector>

#include "nn/checkpoint.h"
#include "training/train_config.h"

namespace flowshard::training {

/// The runner that the model's blocks go through on their way to `inner`, which shards them or not.
///   none       every result that a backward operation reads is kept
///   selective  inputs of linears that are cheap to compute again are not: norms, GELUs, joined tensors
///   full       of a block only its inputs are kept
/// docs/memory.md has the bytes of each.
class ActivationCheckpointer : public nn::BlockRunner {
 public:
  ActivationCheckpointer(ActivationCheckpointing mode, const std::vector<nn::ParameterGroup*>& groups,
                         nn::BlockRunner& inner);
  nn::Tensors run(const nn::ParameterGroup& group, const nn::BlockFunction& block,
                  const nn::Tensors& inputs) override;

 private:
  ActivationCheckpointing mode_;
  nn::BlockRunner& inner_;
  nn::CheckpointingRunner full_;
};

}  // namespace flowshard::training
