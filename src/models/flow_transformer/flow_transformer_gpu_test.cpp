// The blocks of FLUX.1-dev at their full width on the GPU against the same blocks in fp32 on the CPU, which
// the parity tests compare with diffusers.
#include <gtest/gtest.h>

#include <cmath>

#include "models/flow_transformer/flow_transformer.h"

namespace flowshard::models {
namespace {

constexpr int64_t kTxt = 128, kSide = 16;  // text tokens, rows and columns of image tokens

struct Output {
  std::vector<at::Tensor> blocks;  // fp32 on the CPU, in the order of execution
  at::Tensor velocity;
};

/// Keeps what every block returns.
class RecordingRunner : public nn::BlockRunner {
 public:
  nn::Tensors run(const nn::ParameterGroup&, const nn::BlockFunction& block,
                  const nn::Tensors& inputs) override {
    nn::Tensors outputs = block(inputs);
    for (const at::Tensor& output : outputs) recorded.push_back(output.to(at::kCPU, at::kFloat));
    return outputs;
  }
  std::vector<at::Tensor> recorded;
};

FlowTransformerConfig two_blocks_of_flux_dev() {
  FlowTransformerConfig config;
  config.depth = config.depth_single_blocks = 1;
  return config;
}

double relative_error(const at::Tensor& actual, const at::Tensor& expected) {
  return ((actual - expected).norm() / expected.norm()).item<double>();
}

struct FlowTransformerGpu : testing::Test {
  FlowTransformerGpu() : model(two_blocks_of_flux_dev()) {
    at::manual_seed(0);
    nn::materialize(model.parameters(), at::kFloat);
    for (nn::Parameter* parameter : model.parameters()) {
      // Values that bf16 holds exactly, so that only the arithmetic differs.
      parameter->value.normal_(0, 0.02);
      parameter->value.copy_(parameter->value.to(at::kBFloat16));
    }
    img_ids = at::zeros({kSide, kSide, 3});
    img_ids.select(2, 1).copy_(at::arange(kSide).unsqueeze(1));
    img_ids.select(2, 2).copy_(at::arange(kSide));
    img_ids = img_ids.view({-1, 3});
    img = at::randn({1, kSide * kSide, 64});
    txt = at::randn({1, kTxt, 4096});
    y = at::randn({1, 768});
  }

  void move_to(at::TensorOptions options) {
    for (nn::Parameter* parameter : model.parameters()) parameter->value = parameter->value.to(options);
  }

  Output run(const at::TensorOptions& options, bool gradients = false) {
    move_to(options);
    const at::AutoGradMode mode(gradients);
    RecordingRunner runner;
    const at::TensorOptions fp32 = options.dtype(at::kFloat);
    const FlowTransformerInput input = {.img = img.to(options.device()),
                                        .txt = txt.to(options.device()),
                                        .angles = model.rotary_angles(img_ids, kTxt),
                                        .timesteps = at::full({1}, 0.7, fp32),
                                        .y = y.to(options.device()),
                                        .guidance = at::full({1}, 3.5, fp32)};
    const at::Tensor velocity = model.forward(input, runner);
    return {runner.recorded, velocity.to(at::kCPU, at::kFloat)};
  }

  void expect_near(const Output& actual, const Output& expected, double tolerance) {
    ASSERT_EQ(actual.blocks.size(), 3u);  // img and txt of the double block, the single block
    for (size_t i = 0; i < actual.blocks.size(); ++i) {
      EXPECT_LT(relative_error(actual.blocks[i], expected.blocks[i]), tolerance) << "block output " << i;
    }
    EXPECT_LT(relative_error(actual.velocity, expected.velocity), tolerance) << "velocity";
  }

  FlowTransformer model;
  at::Tensor img_ids, img, txt, y;
};

TEST_F(FlowTransformerGpu, Fp32BlocksEqualThoseOfTheCpu) {
  const Output cpu = run(at::kFloat);
  expect_near(run(at::TensorOptions(at::kCUDA).dtype(at::kFloat)), cpu, 2e-5);
}

TEST_F(FlowTransformerGpu, Bf16BlocksAreWithinOnePercent) {
  const Output cpu = run(at::kFloat);
  expect_near(run(at::TensorOptions(at::kCUDA).dtype(at::kBFloat16)), cpu, 1e-2);
  // The path that keeps what backward needs.
  expect_near(run(at::TensorOptions(at::kCUDA).dtype(at::kBFloat16), /*gradients=*/true), cpu, 1e-2);
}

TEST_F(FlowTransformerGpu, ModulationsOfManyStepsGiveTheVelocityOfEach) {
  const at::TensorOptions fp32 = at::TensorOptions(at::kCUDA).dtype(at::kFloat);
  const Output alone = run(fp32.dtype(at::kBFloat16));
  const at::NoGradGuard no_grad;
  nn::DirectRunner runner;
  const Modulations many =
      model.modulations(at::tensor({1.0f, 0.7f, 0.2f}, fp32), y.cuda(), at::full({1}, 3.5, fp32), runner);
  const at::Tensor velocity = model.forward({.img = img.cuda(),
                                             .txt = txt.cuda(),
                                             .angles = model.rotary_angles(img_ids, kTxt),
                                             .modulations = at_step(many, 1)},
                                            runner);
  EXPECT_LT(relative_error(velocity.to(at::kCPU, at::kFloat), alone.velocity), 5e-3);
}

TEST_F(FlowTransformerGpu, LowRankTermsAreThoseOfTheCpu) {
  for (nn::Parameter* parameter : model.parameters()) {
    if (parameter->shape.size() != 2 || parameter->name.find("blocks") == std::string::npos) continue;
    parameter->low_rank.push_back({.adapter = "test",
                                   .down = at::randn({8, parameter->shape[1]}) * 0.02,
                                   .up = at::randn({parameter->shape[0], 8}) * 0.05,
                                   .scale = 0.7,
                                   .row = 0,
                                   .row_scale = at::rand({parameter->shape[0]}) + 0.5});
  }
  const Output cpu = run(at::kFloat);
  for (const auto& [dtype, tolerance] : {std::pair{at::kFloat, 2e-5}, {at::kBFloat16, 1.5e-2}}) {
    for (nn::Parameter* parameter : model.parameters()) {
      for (nn::LowRankTerm& term : parameter->low_rank) {
        for (at::Tensor* tensor : {&term.down, &term.up, &term.row_scale})
          *tensor = tensor->to(at::kCUDA, dtype);
      }
    }
    expect_near(run(at::TensorOptions(at::kCUDA).dtype(dtype)), cpu, tolerance);
  }
}

}  // namespace
}  // namespace flowshard::models
