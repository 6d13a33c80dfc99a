// Forward and backward of the transformer on an encoded batch: the flow-matching loss and its gradients, or
// the loss alone. One thread at a time.
#pragma once

#include <vector>

#include "flow_matching/loss.h"
#include "fsdp/fully_shard.h"
#include "models/flow_transformer/flow_transformer.h"
#include "training/encoded_batch.h"
#include "training/step_phases.h"
#include "training/train_config.h"

namespace flowshard::training {

/// What a pass must know of its step.
struct StepPass {
  int64_t global_samples = 1;  // of the step, over all ranks and passes
  double loss_scale = 1;       // factor of the gradients
  bool is_last_of_step = true;
};

class TransformerPass {
 public:
  /// The latents of a picture have 1 / `downsampling` of its height and width.
  TransformerPass(const TrainConfig& config, models::FlowTransformer& transformer, int64_t downsampling)
      : config_(config), transformer_(transformer), downsampling_(downsampling) {}

  /// Adds the gradients of the batch to those of `state`, which shards the transformer, and returns its part
  /// of the loss: the sum of squared errors over all samples of the step, divided by their number of
  /// elements. Noise and time of sample i come from keys[i]. Tells `phases` what it is doing.
  at::Tensor backward(const EncodedBatch& batch, const std::vector<flow_matching::SampleKey>& keys,
                      const StepPass& pass, fsdp::ShardedState& state, StepPhases& phases);

  /// The mean squared error of each sample, [B] fp32, without gradients; those of `state` stay as they are.
  at::Tensor forward(const EncodedBatch& batch, const flow_matching::NoisyBatch& noisy,
                     fsdp::ShardedState& state);

 private:
  at::Tensor velocity(const EncodedBatch& batch, const flow_matching::NoisyBatch& noisy,
                      nn::BlockRunner& runner);

  TrainConfig config_;
  models::FlowTransformer& transformer_;
  int64_t downsampling_;
  models::RotaryAngles angles_;  // of every batch, once there has been one
};

}  // namespace flowshard::training
