// What blocks of FLUX.1-dev's full width keep on a GPU in each mode of activation checkpointing, and that the
// gradients are the same.
#include <c10/core/CachingDeviceAllocator.h>
#include <gtest/gtest.h>

#include "kernels/relative_error.h"
#include "models/flow_transformer/flow_transformer.h"
#include "training/activation_checkpointer.h"

namespace flowshard::training {
namespace {

constexpr int64_t kTxt = 128, kSide = 16, kTokens = kTxt + kSide * kSide, kBatch = 2;

int64_t allocated_bytes() {
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return c10::getDeviceAllocator(at::kCUDA)->getDeviceStats(0).allocated_bytes[kAll].current;
}

struct Pass {
  double kept_per_token = 0;  // in multiples of D values: what the forward pass left for backward
  at::Tensor velocity;
  std::vector<at::Tensor> gradients;
};

struct ActivationCheckpointerGpu : testing::TestWithParam<bool> {
  ActivationCheckpointerGpu() : model(config()) {
    at::manual_seed(0);
    nn::materialize(model.parameters(), at::TensorOptions(at::kBFloat16).device(at::kCUDA));
    for (nn::Parameter* parameter : model.parameters()) {
      parameter->value.normal_(0, 0.02);
      parameter->trainable = true;
    }
    const at::TensorOptions fp32 = at::TensorOptions(at::kFloat).device(at::kCUDA);
    input = {.img = at::randn({kBatch, kSide * kSide, 64}, fp32),
             .txt = at::randn({kBatch, kTxt, 4096}, fp32),
             .angles = model.rotary_angles(at::zeros({kSide * kSide, 3}), kTxt),
             .timesteps = at::full({kBatch}, 0.7, fp32),
             .y = at::randn({kBatch, 768}, fp32),
             .guidance = at::full({kBatch}, 3.5, fp32)};
  }

  static models::FlowTransformerConfig config() {
    models::FlowTransformerConfig config;
    config.depth = GetParam() ? 1 : 0;
    config.depth_single_blocks = GetParam() ? 0 : 1;
    return config;
  }

  Pass run(ActivationCheckpointing mode) {
    for (nn::Parameter* parameter : model.parameters()) parameter->zero_grad();
    nn::DirectRunner direct;
    ActivationCheckpointer checkpointer(mode, model.groups(), direct);
    // Memory between entry and exit of the block, the block's own outputs not counted.
    struct : nn::BlockRunner {
      nn::Tensors run(const nn::ParameterGroup& group, const nn::BlockFunction& block,
                      const nn::Tensors& inputs) override {
        const int64_t before = allocated_bytes();
        nn::Tensors outputs = inner->run(group, block, inputs);
        bytes = allocated_bytes() - before;
        for (const at::Tensor& output : outputs) bytes -= static_cast<int64_t>(output.nbytes());
        return outputs;
      }
      nn::BlockRunner* inner = nullptr;
      int64_t bytes = 0;
    } measuring;
    measuring.inner = &checkpointer;
    Pass pass;
    pass.velocity = model.forward(input, measuring);
    pass.kept_per_token = static_cast<double>(measuring.bytes) / (kBatch * kTokens * 3072 * 2);
    pass.velocity.square().sum().backward();
    for (const nn::Parameter* parameter : model.parameters())
      pass.gradients.push_back(parameter->grad.clone());
    return pass;
  }

  models::FlowTransformer model;
  models::FlowTransformerInput input;
};

TEST_P(ActivationCheckpointerGpu, EveryModeKeepsWhatTheTableSaysAndComputesTheSame) {
  const bool is_double = GetParam();
  run(ActivationCheckpointing::kNone);  // workspaces of the libraries, and gradients, are allocated
  const Pass none = run(ActivationCheckpointing::kNone);
  // docs/memory.md, without the input, which the block before it made. The rest: statistics of norms and
  // attention, modulations.
  const double kept_none = is_double ? 20 : 18, kept_selective = is_double ? 11 : 9;
  EXPECT_NEAR(none.kept_per_token, kept_none, 0.5);
  for (const auto& [mode, kept] : {std::pair{ActivationCheckpointing::kSelective, kept_selective},
                                   {ActivationCheckpointing::kFull, 0.0}}) {
    const Pass pass = run(mode);
    EXPECT_NEAR(pass.kept_per_token, kept, 0.5);
    // Forward without gradients, as `full` has it, takes the product with the GELU in one kernel.
    if (mode == ActivationCheckpointing::kSelective) {
      EXPECT_TRUE(at::equal(pass.velocity, none.velocity));
    } else {
      EXPECT_LE(kernels::relative_error(pass.velocity, none.velocity), 1e-2);
    }
    // cuDNN's gradient of q is not bitwise repeatable.
    for (size_t i = 0; i < pass.gradients.size(); ++i) {
      const at::Tensor expected = none.gradients[i].to(at::kFloat);
      const at::Tensor difference = pass.gradients[i].to(at::kFloat) - expected;
      EXPECT_LE(difference.norm().item<double>(), 1e-2 * expected.norm().item<double>())
          << model.parameters()[i]->name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Blocks, ActivationCheckpointerGpu, testing::Values(true, false));

}  // namespace
}  // namespace flowshard::training
