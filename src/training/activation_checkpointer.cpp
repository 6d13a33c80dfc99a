#include "training/activation_checkpointer.h"

namespace flowshard::training {

ActivationCheckpointer::ActivationCheckpointer(ActivationCheckpointing mode,
                                               const std::vector<nn::ParameterGroup*>& groups,
                                               nn::BlockRunner& inner)
    : mode_(mode), inner_(inner), full_(inner) {
  for (const nn::ParameterGroup* group : groups) {
    for (nn::Parameter* parameter : group->parameters)
      parameter->recompute_input = mode == ActivationCheckpointing::kSelective;
  }
}

nn::Tensors ActivationCheckpointer::run(const nn::ParameterGroup& group, const nn::BlockFunction& block,
                                        const nn::Tensors& inputs) {
  return mode_ == ActivationCheckpointing::kFull ? full_.run(group, block, inputs)
                                                 : inner_.run(group, block, inputs);
}

}  // namespace flowshard::training
