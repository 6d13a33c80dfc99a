// The estimate of what fsdp holds against what a rank of a small model allocates in a step.
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "distributed/thread_ranks.h"
#include "fsdp/fully_shard.h"
#include "models/flow_transformer/flow_transformer.h"
#include "nn/kept_bytes.h"
#include "training/memory_estimate.h"
#include "training/precision.h"

namespace flowshard::training {
namespace {

models::FlowTransformerConfig small_config() {
  return {.in_channels = 16,
          .out_channels = 16,
          .vec_in_dim = 8,
          .context_in_dim = 12,
          .hidden_size = 64,
          .mlp_hidden_dim = 256,
          .num_heads = 4,
          .depth = 2,
          .depth_single_blocks = 3,
          .axes_dim = {4, 4, 8}};
}

ModelSizes sizes_of(models::FlowTransformer& model) {
  const auto count = [](const nn::ParameterGroup* group) {
    int64_t sum = 0;
    for (const nn::Parameter* parameter : group->parameters) sum += parameter->numel();
    return sum;
  };
  return {.root = count(model.groups().front()),
          .double_block = count(model.groups()[1]),
          .single_block = count(model.groups().back()),
          .num_double_blocks = model.config().depth,
          .num_single_blocks = model.config().depth_single_blocks,
          .text_encoders = 0,
          .autoencoder = 0};
}

void step(models::FlowTransformer& model, fsdp::ShardedState& state, int64_t passes, at::ScalarType dtype) {
  state.begin_step();
  for (int64_t pass = 0; pass < passes; ++pass) {
    state.begin_forward(pass == passes - 1);
    const auto generator = at::make_generator<at::CPUGeneratorImpl>(0);
    model
        .forward({.img = at::randn({1, 4, 16}, generator).to(dtype),
                  .txt = at::randn({1, 3, 12}, generator).to(dtype),
                  .angles = model.rotary_angles(at::zeros({4, 3}), 3),
                  .timesteps = at::ones({1}),
                  .y = at::randn({1, 8}, generator),
                  .guidance = at::ones({1})},
                 state)
        .square()
        .sum()
        .backward();
    state.end_backward();
  }
}

struct Case {
  Strategy strategy;
  int world;
  Precision mode;
  int64_t passes = 1;
  bool no_sync = false;
};
struct EstimatedMemory : testing::TestWithParam<Case> {};

TEST_P(EstimatedMemory, IsWhatShardsAndTheirBuffersAllocate) {
  const Case& one = GetParam();
  TrainConfig config;
  config.parallel.strategy = one.strategy;
  config.precision.mode = one.mode;
  config.train.gradient_accumulation_steps = one.passes;
  config.train.no_sync = one.no_sync;
  const JobSize job{.num_ranks = one.world};
  distributed::run_thread_ranks(one.world, std::chrono::seconds(30), [&](distributed::ProcessGroup& ranks) {
    models::FlowTransformer model(small_config());
    for (nn::Parameter* parameter : model.parameters()) parameter->trainable = true;
    const RunPrecision precision = precision_of(config);
    distributed::DeviceMesh mesh(ranks, static_cast<int>(shard_count(config, job)));
    const nn::KeptBytes kept;
    fsdp::ShardedState state(model.groups(), {.mesh = mesh,
                                              .device = at::kCPU,
                                              .precision = precision.shards,
                                              .reshard_after_forward = one.strategy != Strategy::kShardGradOp,
                                              .no_sync = one.no_sync});
    state.initialize([](const nn::ParameterGroup& group) {
      for (nn::Parameter* parameter : group.parameters) parameter->value.fill_(0.01);
    });
    for (int i = 0; i < 2; ++i) step(model, state, one.passes, precision.shards.param_dtype);

    int64_t estimated = 0;
    for (const MemoryItem& item : estimate_memory(config, sizes_of(model), job).resident) {
      if (item.name != "optimizer state") estimated += item.bytes;
    }
    EXPECT_NEAR(static_cast<double>(kept.bytes()), static_cast<double>(estimated),
                0.02 * static_cast<double>(estimated));
  });
}

INSTANTIATE_TEST_SUITE_P(Settings, EstimatedMemory,
                         testing::Values(Case{Strategy::kFullShard, 1, Precision::kFp32},
                                         Case{Strategy::kFullShard, 2, Precision::kFp32},
                                         Case{Strategy::kFullShard, 2, Precision::kBf16},
                                         Case{Strategy::kFullShard, 2, Precision::kBf16Pure},
                                         Case{Strategy::kFullShard, 2, Precision::kBf16, 2, true},
                                         Case{Strategy::kShardGradOp, 2, Precision::kBf16},
                                         Case{Strategy::kNoShard, 2, Precision::kFp32},
                                         Case{Strategy::kNoShard, 1, Precision::kBf16}));

}  // namespace
}  // namespace flowshard::training
