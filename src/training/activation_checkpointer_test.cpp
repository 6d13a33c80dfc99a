// The modes of activation checkpointing against "none": a tiny FLUX transformer, alone and sharded.
#include "training/activation_checkpointer.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "distributed/thread_ranks.h"
#include "fsdp/fully_shard.h"
#include "models/flow_transformer/flow_transformer.h"
#include "nn/kept_bytes.h"

namespace flowshard::training {
namespace {

constexpr int64_t kBatch = 3, kImg = 6, kTxt = 5, kHidden = 32;

models::FlowTransformerConfig tiny_config() {
  return {.in_channels = 16,
          .out_channels = 16,
          .vec_in_dim = 8,
          .context_in_dim = 12,
          .hidden_size = kHidden,
          .mlp_hidden_dim = 4 * kHidden,
          .num_heads = 2,
          .depth = 2,
          .depth_single_blocks = 2,
          .axes_dim = {4, 4, 8}};
}

// Ranks are threads: each draws from generators of its own.
at::Generator generator(uint64_t seed) { return at::make_generator<at::CPUGeneratorImpl>(seed); }

void fill(const nn::ParameterGroup& group) {
  const at::Generator random = generator(group.name.size());
  for (nn::Parameter* parameter : group.parameters) parameter->value.normal_(0, 0.1, random);
}

models::FlowTransformerInput sample(const models::FlowTransformer& model, int64_t seed) {
  const at::Generator random = generator(static_cast<uint64_t>(seed));
  return {.img = at::randn({kBatch, kImg, 16}, random),
          .txt = at::randn({kBatch, kTxt, 12}, random),
          .angles = model.rotary_angles(at::arange(kImg * 3, at::kFloat).view({kImg, 3}), kTxt),
          .timesteps = at::rand({kBatch}, random),
          .y = at::randn({kBatch, 8}, random),
          .guidance = at::ones({kBatch})};
}

struct Case {
  ActivationCheckpointing mode;
  int world, shard_size;
  bool reshard_after_forward;
  at::ScalarType dtype;
};

struct Gradients {
  std::vector<at::Tensor> losses, shards;  // of one rank
};

/// Two passes over this rank's samples.
Gradients gradients(ActivationCheckpointing mode, const Case& setting, distributed::ProcessGroup& ranks,
                    bool only_single_blocks) {
  distributed::DeviceMesh mesh(ranks, setting.shard_size);
  models::FlowTransformer model(tiny_config());
  for (nn::Parameter* parameter : model.parameters())
    parameter->trainable = !only_single_blocks || parameter->name.starts_with("single_blocks");
  fsdp::ShardedState state(model.groups(), {.mesh = mesh,
                                            .device = at::kCPU,
                                            .precision = {.param_dtype = setting.dtype},
                                            .reshard_after_forward = setting.reshard_after_forward});
  state.initialize(fill);
  state.begin_step();
  Gradients result;
  for (int64_t pass = 0; pass < 2; ++pass) {
    state.begin_forward(/*is_last_pass=*/pass == 1);
    ActivationCheckpointer runner(mode, model.groups(), state);
    const at::Tensor loss =
        model.forward(sample(model, 10 * pass + ranks.rank()), runner).square().sum().to(at::kFloat);
    loss.backward();
    state.end_backward();
    result.losses.push_back(loss.detach());
  }
  for (const auto& group : state.groups()) result.shards.push_back(group->grad_shard().clone());
  return result;
}

struct Checkpointing : testing::TestWithParam<Case> {};

TEST_P(Checkpointing, LossAndGradientsAreBitwiseThoseOfNone) {
  const Case& setting = GetParam();
  distributed::run_thread_ranks(
      setting.world, std::chrono::seconds(30), [&](distributed::ProcessGroup& ranks) {
        for (const bool only_single_blocks : {false, true}) {
          const Gradients expected =
              gradients(ActivationCheckpointing::kNone, setting, ranks, only_single_blocks);
          const Gradients actual = gradients(setting.mode, setting, ranks, only_single_blocks);
          for (size_t i = 0; i < expected.losses.size(); ++i)
            EXPECT_TRUE(at::equal(actual.losses[i], expected.losses[i])) << "loss " << i;
          for (size_t i = 0; i < expected.shards.size(); ++i)
            EXPECT_TRUE(at::equal(actual.shards[i], expected.shards[i])) << "group " << i;
          EXPECT_GT(expected.shards.back().abs().max().item<float>(), 0);
        }
      });
}

std::vector<Case> cases() {
  std::vector<Case> result;
  for (const auto mode : {ActivationCheckpointing::kSelective, ActivationCheckpointing::kFull}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      result.push_back({mode, 1, 1, true, dtype});
      result.push_back({mode, 2, 1, true, dtype});   // no_shard
      result.push_back({mode, 2, 2, true, dtype});   // full_shard
      result.push_back({mode, 2, 2, false, dtype});  // shard_grad_op
    }
  }
  return result;
}

INSTANTIATE_TEST_SUITE_P(Modes, Checkpointing, testing::ValuesIn(cases()));

/// Bytes that a forward pass of one block keeps for backward, its inputs not counted.
int64_t bytes_kept(ActivationCheckpointing mode, bool is_double) {
  models::FlowTransformerConfig config = tiny_config();
  config.depth = is_double ? 1 : 0;
  config.depth_single_blocks = is_double ? 0 : 1;
  models::FlowTransformer model(config);
  nn::materialize(model.parameters(), at::kFloat);
  for (nn::ParameterGroup* group : model.groups()) {
    fill(*group);
    for (nn::Parameter* parameter : group->parameters) parameter->trainable = true;
  }
  const models::FlowTransformerInput input = sample(model, 0);
  nn::DirectRunner direct;
  ActivationCheckpointer runner(mode, model.groups(), direct);
  const nn::KeptBytes kept;
  const at::Tensor velocity = model.forward(input, runner);
  return kept.bytes();
}

// docs/memory.md: a selective double block keeps 2 + 4 D values a token less than one that keeps all, a
// single block 1 + 5 D.
TEST(ActivationCheckpointer, SelectiveSavesWhatTheTableSays) {
  for (const bool is_double : {true, false}) {
    const int64_t none = bytes_kept(ActivationCheckpointing::kNone, is_double);
    const int64_t selective = bytes_kept(ActivationCheckpointing::kSelective, is_double);
    EXPECT_GE(none - selective, kBatch * (kTxt + kImg) * 9 * kHidden * 4) << is_double;
  }
}

TEST(ActivationCheckpointer, FullKeepsLessThanOneResultOfTheBlock) {
  for (const bool is_double : {true, false}) {
    const int64_t selective = bytes_kept(ActivationCheckpointing::kSelective, is_double);
    const int64_t full = bytes_kept(ActivationCheckpointing::kFull, is_double);
    // qkv, the product of the MLP, and what attention returns.
    EXPECT_GT(selective - full, kBatch * (kTxt + kImg) * 8 * kHidden * 4) << is_double;
  }
}

}  // namespace
}  // namespace flowshard::training
