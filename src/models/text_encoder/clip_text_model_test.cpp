#include "models/text_encoder/clip_text_model.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "core/temporary_folder.h"

namespace flowshard::models {
namespace {

constexpr int64_t kEos = 19;

ClipTextConfig tiny() {
  return {.vocab_size = 20,
          .hidden_size = 8,
          .intermediate_size = 12,
          .num_hidden_layers = 2,
          .num_attention_heads = 2,
          .max_position_embeddings = 10,
          .eos_token_id = kEos};
}

at::Tensor& value(ClipTextModel& model, const std::string& name) {
  for (nn::Parameter* parameter : model.parameters()) {
    if (parameter->name == name) return parameter->value;
  }
  throw std::out_of_range(name);
}

void fill_randomly(ClipTextModel& model) {
  at::manual_seed(3);
  for (nn::Parameter* parameter : model.parameters()) parameter->value = at::randn(parameter->shape);
}

at::Tensor ids_of(std::vector<int64_t> ids) { return at::tensor(ids, at::kLong).unsqueeze(0); }

/// The model without its layers: what is pooled is the normed embedding at one place.
void make_layers_pass_through(ClipTextModel& model) {
  for (nn::Parameter* parameter : model.parameters()) {
    const std::string& name = parameter->name;
    if (name.find("out_proj") != std::string::npos || name.find("fc2") != std::string::npos)
      parameter->value.zero_();
  }
}

at::Tensor normed_embedding(ClipTextModel& model, int64_t id, int64_t position) {
  const at::Tensor x = value(model, "embeddings.token_embedding.weight")[id] +
                       value(model, "embeddings.position_embedding.weight")[position];
  return at::layer_norm(x, {8}, value(model, "final_layer_norm.weight"),
                        value(model, "final_layer_norm.bias"));
}

TEST(ClipTextModel, PoolsAtTheFirstEndToken) {
  ClipTextModel model(tiny());
  fill_randomly(model);
  make_layers_pass_through(model);
  const at::Tensor ids = at::cat({ids_of({1, 5, kEos, kEos, kEos}), ids_of({1, 5, 6, kEos, 2})});
  const at::Tensor pooled = model.forward(ids);
  EXPECT_TRUE(at::allclose(pooled[0], normed_embedding(model, kEos, 2)));
  EXPECT_TRUE(at::allclose(pooled[1], normed_embedding(model, kEos, 3)));
}

TEST(ClipTextModel, LegacyEndTokenIsTheHighestId) {
  ClipTextConfig config = tiny();
  config.eos_token_id = 2;
  ClipTextModel model(config);
  fill_randomly(model);
  make_layers_pass_through(model);
  const at::Tensor pooled = model.forward(ids_of({1, 2, 5, kEos, kEos, kEos}));
  EXPECT_TRUE(at::allclose(pooled[0], normed_embedding(model, kEos, 3)));
}

TEST(ClipTextModel, LaterTokensDoNotReachEarlierOnes) {
  ClipTextModel model(tiny());
  fill_randomly(model);
  const at::Tensor alone = model.forward(ids_of({1, 5, kEos}));
  // The second row ends later, so that the first row is computed past its end.
  const at::Tensor ids = at::cat({ids_of({1, 5, kEos, 7, 8, 9}), ids_of({1, 5, 6, 3, 4, kEos})});
  EXPECT_TRUE(at::allclose(model.forward(ids)[0], alone[0], 1e-4, 1e-5));
  // Earlier tokens do count.
  EXPECT_FALSE(at::allclose(model.forward(ids_of({1, 6, kEos}))[0], alone[0], 1e-2, 1e-2));
}

TEST(ClipTextModel, OneTokenOneLayerInClosedForm) {
  for (const std::string activation : {"quick_gelu", "gelu"}) {
    ClipTextConfig config = tiny();
    config.num_hidden_layers = 1;
    config.hidden_act = activation;
    ClipTextModel model(config);
    fill_randomly(model);
    const auto w = [&](const std::string& name) { return value(model, "encoder.layers.0." + name); };
    const auto linear = [&](const at::Tensor& x, const std::string& name) {
      return x.matmul(w(name + ".weight").t()) + w(name + ".bias");
    };
    const auto norm = [&](const at::Tensor& x, const std::string& name) {
      return at::layer_norm(x, {8}, w(name + ".weight"), w(name + ".bias"));
    };
    at::Tensor x = value(model, "embeddings.token_embedding.weight")[kEos] +
                   value(model, "embeddings.position_embedding.weight")[0];
    // One token attends to itself alone.
    x = x + linear(linear(norm(x, "layer_norm1"), "self_attn.v_proj"), "self_attn.out_proj");
    const at::Tensor h = linear(norm(x, "layer_norm2"), "mlp.fc1");
    const at::Tensor act =
        activation == "gelu" ? 0.5 * h * (1 + at::erf(h / std::sqrt(2.0))) : h / (1 + at::exp(-1.702 * h));
    x = x + linear(act, "mlp.fc2");
    const at::Tensor expected = at::layer_norm(x, {8}, value(model, "final_layer_norm.weight"),
                                               value(model, "final_layer_norm.bias"));
    EXPECT_TRUE(at::allclose(model.forward(ids_of({kEos, 3}))[0], expected, 1e-4, 1e-5)) << activation;
  }
}

TEST(ClipTextModel, RefusesIdsOutsideTheVocabulary) {
  ClipTextModel model(tiny());
  fill_randomly(model);
  EXPECT_THROW(model.forward(ids_of({1, 20, kEos})), ConfigError);
}

TEST(ClipTextNames, FollowThePrefixOfTheFile) {
  for (const TensorPart& part : clip_text_names(tiny())) EXPECT_EQ(part.key, part.parameter);
  for (const TensorPart& part : clip_text_names(tiny(), {"text_model.final_layer_norm.bias"})) {
    EXPECT_EQ(part.key, "text_model." + part.parameter);
  }
}

std::string config_error(const std::string& content) {
  const TemporaryFolder folder;
  const auto file = folder / "config.json";
  std::ofstream(file) << content;
  try {
    ClipTextConfig::from_file(file);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(ClipTextConfig, ReadsAndRefuses) {
  const std::string sizes = R"({"model_type": "clip_text_model", "vocab_size": 9, "hidden_size": 8,
                                "intermediate_size": 16, "num_hidden_layers": 2)";
  EXPECT_EQ(config_error(sizes + R"(, "num_attention_heads": 2})"), "");
  EXPECT_NE(config_error(sizes + "}").find("the key num_attention_heads is missing"), std::string::npos);
  EXPECT_NE(config_error(sizes + R"(, "num_attention_heads": 3})").find("must divide hidden_size"),
            std::string::npos);
  EXPECT_NE(config_error(sizes + R"(, "num_attention_heads": 2, "hidden_act": "relu"})")
                .find("hidden_act is \"relu\""),
            std::string::npos);
  EXPECT_NE(
      config_error(sizes + R"(, "num_attention_heads": 2, "eos_token_id": [2]})").find("eos_token_id is [2]"),
      std::string::npos);
  EXPECT_NE(config_error(R"({"model_type": "clip"})").find("model_type is \"clip\""), std::string::npos);
}

}  // namespace
}  // namespace flowshard::models
