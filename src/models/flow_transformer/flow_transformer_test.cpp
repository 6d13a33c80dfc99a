#include "models/flow_transformer/flow_transformer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "core/error.h"

namespace flowshard::models {
namespace {

constexpr double kInit = 0.05;

FlowTransformerConfig tiny_config() {
  return {.in_channels = 16,
          .out_channels = 16,
          .vec_in_dim = 8,
          .context_in_dim = 12,
          .hidden_size = 24,
          .mlp_hidden_dim = 96,
          .num_heads = 2,
          .depth = 1,
          .depth_single_blocks = 2,
          .axes_dim = {4, 4, 4}};
}

struct FlowTransformerTest : testing::Test {
  FlowTransformerTest() : model(tiny_config()) {
    at::manual_seed(0);
    nn::materialize(model.parameters(), at::kDouble);
    for (nn::Parameter* parameter : model.parameters()) {
      parameter->value.normal_(0, kInit);
      parameter->trainable = true;
    }
    input = {.img = at::randn({2, 6, 16}, at::kDouble),
             .txt = at::randn({2, 5, 12}, at::kDouble),
             .angles = model.rotary_angles(at::rand({6, 3}) * 4, 5),
             .timesteps = at::tensor({0.3f, 0.9f}),
             .y = at::randn({2, 8}, at::kDouble),
             .guidance = at::tensor({1.0f, 3.5f})};
  }
  at::Tensor loss() { return model.forward(input, runner).square().sum(); }
  FlowTransformer model;
  FlowTransformerInput input;
  nn::DirectRunner runner;
};

TEST(TimestepEmbedding, MatchesThePublishedValues) {
  const at::Tensor emb = timestep_embedding(at::ones({1}))[0];
  const int64_t at_index[] = {0, 1, 64, 127};
  const float cos[] = {.562379f, .789615f, -.839072f, .994232f},
              sin[] = {.826880f, .613603f, -.544021f, .107254f};
  for (int i = 0; i < 4; ++i) {
    EXPECT_NEAR(emb[at_index[i]].item<float>(), cos[i], 2e-5);
    EXPECT_NEAR(emb[128 + at_index[i]].item<float>(), sin[i], 2e-5);
  }
}

TEST(EmbedND, AnglesArePositionTimesFrequencyAxisByAxis) {
  const auto angles = embed_nd(at::tensor({0.f, 300.f, 7.f}).view({1, 3}), {4, 4, 6}, 10000);
  ASSERT_EQ(angles.cos.sizes(), (std::vector<int64_t>{1, 7}));
  const double expected[] = {0,
                             0,
                             300,
                             300 * std::pow(10000, -2.0 / 4),
                             7,
                             7 * std::pow(10000, -2.0 / 6),
                             7 * std::pow(10000, -4.0 / 6)};
  for (int i = 0; i < 7; ++i) EXPECT_NEAR(angles.sin[0][i].item<double>(), std::sin(expected[i]), 1e-6);
}

TEST(EmbedND, EveryPositionHasAnglesOfItsOwn) {
  const at::Tensor positions = at::arange(512, at::kFloat).unsqueeze(1).expand({512, 3});
  const auto angles = embed_nd(positions, {16, 56, 56}, 10000);
  const at::Tensor rows = at::cat({angles.cos, angles.sin}, 1);
  EXPECT_EQ(std::get<0>(at::unique_dim(rows.narrow(1, 8, 28), 0)).size(0), 512);
  EXPECT_EQ(rows.scalar_type(), at::kFloat);
}

// In bf16 these pairs are one number: 300 and 301, 0.75 and 0.752.
TEST_F(FlowTransformerTest, PositionsAndTimesAreNotRoundedToBf16) {
  at::NoGradGuard no_grad;
  for (nn::Parameter* parameter : model.parameters()) {
    parameter->value = at::randn(parameter->shape).mul_(0.3).to(at::kBFloat16);
  }
  const auto velocity = [&](float position, float time, float guidance) {
    FlowTransformerInput changed = input;
    at::Tensor img_ids = at::zeros({6, 3});
    img_ids[0][2] = position;
    changed.angles = model.rotary_angles(img_ids, 5);
    changed.timesteps = at::full({2}, time);
    changed.guidance = at::full({2}, guidance);
    return model.forward(changed, runner);
  };
  const at::Tensor first = velocity(300, 0.75, 3.5);
  EXPECT_TRUE(at::equal(velocity(300, 0.75, 3.5), first));
  EXPECT_FALSE(at::equal(velocity(301, 0.75, 3.5), first));
  EXPECT_FALSE(at::equal(velocity(300, 0.752F, 3.5), first));
  EXPECT_FALSE(at::equal(velocity(300, 0.75, 3.504F), first));
}

TEST_F(FlowTransformerTest, EveryParameterGradientMatchesFiniteDifferences) {
  loss().backward();
  for (nn::Parameter* parameter : model.parameters()) {
    ASSERT_TRUE(parameter->grad.defined()) << parameter->name;
    // Along a random direction: one number checks the whole gradient.
    const at::Tensor direction = at::randn(parameter->shape, at::kDouble);
    const double expected = (parameter->grad * direction).sum().item<double>();
    const double h = 1e-5;
    at::NoGradGuard no_grad;
    parameter->value.add_(direction, h);
    const double plus = loss().item<double>();
    parameter->value.add_(direction, -2 * h);
    const double minus = loss().item<double>();
    parameter->value.add_(direction, h);
    EXPECT_NEAR((plus - minus) / (2 * h), expected, 1e-5 * std::max(1.0, std::abs(expected)))
        << parameter->name;
  }
}

TEST_F(FlowTransformerTest, ASampleDoesNotDependOnItsBatch) {
  at::NoGradGuard no_grad;
  const at::Tensor both = model.forward(input, runner);
  FlowTransformerInput alone = input;
  for (at::Tensor* tensor : {&alone.img, &alone.txt, &alone.timesteps, &alone.y, &alone.guidance}) {
    *tensor = tensor->narrow(0, 1, 1);
  }
  EXPECT_TRUE(at::allclose(model.forward(alone, runner), both.narrow(0, 1, 1)));
}

TEST_F(FlowTransformerTest, GroupsHoldEveryParameterOnceUnderItsBlocksName) {
  std::set<std::string> names;
  for (const nn::ParameterGroup* group : model.groups()) {
    for (const nn::Parameter* parameter : group->parameters) {
      EXPECT_TRUE(parameter->name.starts_with(group->name)) << parameter->name;
      EXPECT_TRUE(names.insert(parameter->name).second) << parameter->name;
    }
  }
  EXPECT_EQ(model.groups().size(), 4u);
  EXPECT_TRUE(names.contains("double_blocks.0.img_attn.norm.query_norm.scale"));
}

TEST_F(FlowTransformerTest, DiffusersNamesCoverEveryRowOfEveryParameterOnce) {
  std::map<std::string, int64_t> covered;
  std::map<std::string, int64_t> rows;
  for (const nn::Parameter* parameter : model.parameters()) rows[parameter->name] = parameter->shape[0];
  for (const TensorPart& part : flow_transformer_diffusers_names(model.config())) {
    ASSERT_TRUE(rows.contains(part.parameter)) << part.parameter;
    covered[part.parameter] += part.rows < 0 ? rows[part.parameter] : part.rows;
  }
  EXPECT_EQ(covered, rows);
}

TEST(FlowTransformerConfig, TheDefaultIsFluxDevWithItsParameterCount) {
  FlowTransformer model{FlowTransformerConfig{}};
  int64_t count = 0;
  for (const nn::Parameter* parameter : model.parameters()) count += parameter->numel();
  EXPECT_EQ(count, 11'901'408'320);
}

// A file of the official code with the tensors of `config`.
TensorListing official_file(const FlowTransformerConfig& config) {
  TensorListing file{.source = "flux.safetensors", .shapes = {}, .metadata = {}};
  FlowTransformer model(config);
  for (const nn::Parameter* parameter : model.parameters()) file.shapes[parameter->name] = parameter->shape;
  return file;
}

TEST(FlowTransformerConfig, ReleasedModelsAreKnownByTheirShapes) {
  for (const bool guidance : {true, false}) {
    FlowTransformerConfig released;
    released.guidance_embed = guidance;
    const auto inferred = FlowTransformerConfig::from_bfl(official_file(released));
    EXPECT_EQ(inferred.to_diffusers(), released.to_diffusers());
    EXPECT_EQ(inferred.mlp_hidden_dim, released.mlp_hidden_dim);
  }
}

TEST(FlowTransformerConfig, OneKindOfBlockIsEnough) {
  for (const auto& [depth, singles] : {std::pair{0, 3}, std::pair{11, 0}}) {
    FlowTransformerConfig config = tiny_config();
    config.depth = depth;
    config.depth_single_blocks = singles;
    TensorListing file = official_file(config);
    file.metadata = config.bfl_metadata();
    const auto inferred = FlowTransformerConfig::from_bfl(file);
    EXPECT_EQ(inferred.depth, depth);
    EXPECT_EQ(inferred.depth_single_blocks, singles);
    EXPECT_EQ(inferred.mlp_hidden_dim, config.mlp_hidden_dim);
    EXPECT_EQ(inferred.axes_dim, config.axes_dim);
  }
}

TEST(FlowTransformerConfig, ATensorWithoutElementsGivesNoSize) {
  TensorListing file = official_file(FlowTransformerConfig{});
  for (const char* key : {"img_in.weight", "txt_in.weight", "double_blocks.0.img_mlp.0.weight"}) {
    TensorListing hostile = file;
    hostile.shapes[key] = {int64_t{1} << 61, 0};
    EXPECT_THROW(FlowTransformerConfig::from_bfl(hostile), CheckpointError) << key;
    hostile.shapes[key] = {0, int64_t{1} << 61};
    EXPECT_THROW(FlowTransformerConfig::from_bfl(hostile), CheckpointError) << key;
  }
}

TEST(InitializeRandom, DependsOnSeedAndNameAndZeroesTheOutput) {
  FlowTransformer first(tiny_config()), second(tiny_config());
  for (FlowTransformer* model : {&first, &second}) {
    nn::materialize(model->parameters(), at::kFloat);
    initialize_random(model->parameters(), 5);
  }
  for (size_t i = 0; i < first.parameters().size(); ++i) {
    EXPECT_TRUE(at::equal(first.parameters()[i]->value, second.parameters()[i]->value));
  }
  nn::DirectRunner runner;
  const at::Tensor v = first.forward({.img = at::randn({1, 4, 16}),
                                      .txt = at::randn({1, 3, 12}),
                                      .angles = first.rotary_angles(at::zeros({4, 3}), 3),
                                      .timesteps = at::ones({1}),
                                      .y = at::randn({1, 8}),
                                      .guidance = at::ones({1})},
                                     runner);
  EXPECT_EQ(v.abs().max().item<float>(), 0);
}

}  // namespace
}  // namespace flowshard::models
