// What one pass over a batch computes: the flow-matching loss of the transformer on what the frozen encoders
// make of pictures and captions, and its gradients. One thread at a time.
#pragma once

#include <ATen/ATen.h>

#include "dataset/dataset.h"
#include "fsdp/fully_shard.h"
#include "model_folder/model_folder.h"
#include "models/flow_transformer/flow_transformer.h"
#include "training/sample_encoder.h"
#include "training/step_phases.h"
#include "training/train_config.h"
#include "training/transformer_pass.h"

namespace flowshard::training {

class Objective {
 public:
  /// Loads the frozen parts; the transformer has no weights yet. Throws ConfigError or CheckpointError if the
  /// parts of the folder do not fit each other or the configuration.
  Objective(const ModelFolder& folder, const TrainConfig& config, at::Device device);

  models::FlowTransformer& transformer() { return transformer_; }

  /// Adds the gradients of this batch to those of `state`, which shards the transformer, and returns its part
  /// of the loss: the sum of squared errors over all samples of the step, divided by their number of
  /// elements. Tells `phases` what it is doing.
  at::Tensor backward_pass(const dataset::Batch& batch, const StepPass& pass, fsdp::ShardedState& state,
                           StepPhases& phases);

  /// The loss of each sample of a validation batch, [B] fp32, at times t [B] (fp32, on the CPU); the first is
  /// sample first_sample of the data set, from which its noise comes. Makes the collectives of a forward pass
  /// and leaves gradients as they are.
  at::Tensor validation_losses(const dataset::Batch& batch, int64_t first_sample, const at::Tensor& t,
                               fsdp::ShardedState& state);

 private:
  void check_shapes() const;

  TrainConfig config_;
  models::FlowTransformer transformer_;
  SampleEncoder encoder_;
  TransformerPass pass_;
};

}  // namespace flowshard::training
