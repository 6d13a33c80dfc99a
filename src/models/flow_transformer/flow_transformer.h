// The FLUX.1 transformer: predicts the velocity of image tokens from text, time and guidance.
// Single-device code; every block goes through a BlockRunner, so that sharding attaches from outside. One
// call at a time. Shapes: B batch, L image tokens, T text tokens.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <vector>

#include "models/flow_transformer/blocks.h"
#include "models/flow_transformer/config.h"
#include "nn/block_runner.h"

namespace flowshard::models {

/// What forwards need of time, guidance and pooled text, which is the same for every token: shift, scale and
/// gate of each block in the order of execution, and of the last layer; each [S, multiple of D].
using Modulations = std::vector<at::Tensor>;

struct FlowTransformerInput {
  at::Tensor img;                // [B, L, in_channels]
  at::Tensor txt;                // [B, T, context_in_dim]; T5 hidden states
  RotaryAngles angles;           // of these T + L tokens
  at::Tensor timesteps = {};     // [B] fp32 in [0, 1]; 1 is noise
  at::Tensor y = {};             // [B, vec_in_dim]; CLIP pooled vector
  at::Tensor guidance = {};      // [B] fp32; undefined if the model has no guidance input
  Modulations modulations = {};  // of these B, in place of timesteps, y and guidance; or empty
};

/// Whether modulations() alone needs the parameter.
bool is_modulation(const nn::Parameter& parameter);

/// Entry `step` of modulations of several steps, for a batch of one.
Modulations at_step(const Modulations& modulations, int64_t step);

class FlowTransformer {
 public:
  explicit FlowTransformer(const FlowTransformerConfig& config);
  FlowTransformer(const FlowTransformer&) = delete;

  const FlowTransformerConfig& config() const { return config_; }

  /// The velocity, [B, L, out_channels], in the dtype of the parameters. The root group is materialized for
  /// the whole call (and its backward), each block's group while `runner` runs it.
  at::Tensor forward(const FlowTransformerInput& input, nn::BlockRunner& runner);

  /// The angles of `txt_length` text tokens, all at (0, 0, 0), then image tokens at `img_ids` [L, 3]: (0,
  /// row, column). On the device of the model; in fp64 for a model in fp64, else in fp32.
  RotaryAngles rotary_angles(const at::Tensor& img_ids, int64_t txt_length) const;

  /// The modulations of S steps at once: timesteps [S], y [1, vec_in_dim], guidance [1] or undefined. A
  /// quarter of all weights is needed for nothing else.
  Modulations modulations(const at::Tensor& timesteps, const at::Tensor& y, const at::Tensor& guidance,
                          nn::BlockRunner& runner);

  /// The root group (""), then one group per block in the order of execution.
  std::vector<nn::ParameterGroup*> groups();
  std::vector<nn::Parameter*> parameters();

 private:
  at::Tensor silu_vec(const at::Tensor& timesteps, const at::Tensor& y, const at::Tensor& guidance);

  FlowTransformerConfig config_;
  nn::ParameterGroup root_;
  nn::Linear img_in_, txt_in_;
  MLPEmbedder time_in_, vector_in_;
  std::unique_ptr<MLPEmbedder> guidance_in_;  // null without guidance_embed
  std::vector<std::unique_ptr<DoubleStreamBlock>> double_blocks_;
  std::vector<std::unique_ptr<SingleStreamBlock>> single_blocks_;
  LastLayer final_layer_;
};

/// Fills materialized parameters for training from scratch: Xavier-uniform linears, N(0, 0.02) for the time,
/// guidance and vector embedders, ones for norm scales, zeros for biases, modulations and the final layer (as
/// torchtitan's FLUX does). Each parameter's values depend on `seed` and its name alone.
void initialize_random(const std::vector<nn::Parameter*>& parameters, uint64_t seed);

}  // namespace flowshard::models
