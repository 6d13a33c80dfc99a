#include "models/lora/lora.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <limits>

#include "core/error.h"
#include "nn/linear.h"

namespace flowshard::models {
namespace {

constexpr int64_t kHidden = 4;

/// The linears of a transformer and of a text encoder that the tests name.
struct LoraTest : testing::Test {
  LoraTest() {
    at::manual_seed(0);
    LoraTarget transformer{LoraComponent::kTransformer, {}, {}}, clip{LoraComponent::kTextEncoder, {}, {}};
    const auto add = [&](LoraTarget& target, const std::string& name, std::vector<int64_t> shape) {
      parameters.emplace_back(name, shape).value = at::randn(shape, at::kDouble);
      target.parameters.push_back(&parameters.back());
      return &parameters.back();
    };
    qkv = add(transformer, "double_blocks.0.img_attn.qkv.weight", {3 * kHidden, kHidden});
    add(transformer, "double_blocks.0.img_attn.qkv.bias", {3 * kHidden});
    modulation = add(transformer, "final_layer.adaLN_modulation.1.weight", {2 * kHidden, kHidden});
    img_in = add(transformer, "img_in.weight", {kHidden, 3});
    clip_q = add(clip, "encoder.layers.0.self_attn.q_proj.weight", {kHidden, kHidden});
    add(clip, "embeddings.token_embedding.weight", {9, kHidden});

    const char* const projections[] = {"to_q", "to_k", "to_v"};
    for (int64_t i = 0; i < 3; ++i) {
      transformer.stored_names.push_back(
          {qkv->name, std::string("transformer_blocks.0.attn.") + projections[i] + ".weight", i * kHidden,
           kHidden});
    }
    transformer.stored_names.push_back({modulation->name, "norm_out.linear.weight", 0, kHidden, kHidden});
    transformer.stored_names.push_back({modulation->name, "norm_out.linear.weight", kHidden, kHidden, 0});
    transformer.stored_names.push_back({img_in->name, "x_embedder.weight"});
    clip.stored_names.push_back({clip_q->name, "text_model." + clip_q->name});
    targets = {transformer, clip};
  }

  /// A file with a pair of matrices for one module, spelt as `module` + `down`.
  LoraFile pair(const std::string& module, int64_t rows, int64_t columns, int64_t rank = 2,
                const std::string& down = ".lora_A.weight", const std::string& up = ".lora_B.weight") {
    LoraFile file{.source = "style.safetensors", .tensors = {}, .metadata = {}};
    file.tensors[module + down] = at::randn({rank, columns}, at::kFloat);
    file.tensors[module + up] = at::randn({rows, rank}, at::kFloat);
    return file;
  }

  ParsedLora parse(const LoraFile& file) { return parse_lora(file, targets); }

  /// The message of the ConfigError that parsing and requiring all keys throws.
  std::string refusal(const LoraFile& file) {
    try {
      require_all_matched(parse(file), file, targets);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  }

  std::deque<nn::Parameter> parameters;
  nn::Parameter *qkv, *modulation, *img_in, *clip_q;
  std::vector<LoraTarget> targets;
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct Naming {
  const char *module, *down, *up;
};

struct FusedNamings : LoraTest, testing::WithParamInterface<Naming> {};

TEST_P(FusedNamings, GiveOneAdapterOfTheWholeLinear) {
  const auto [module, down, up] = GetParam();
  const LoraFile file = pair(module, 3 * kHidden, kHidden, 2, down, up);
  const ParsedLora parsed = parse(file);
  ASSERT_EQ(parsed.adapters.size(), 1u);
  EXPECT_EQ(parsed.num_matched, 2);
  EXPECT_EQ(parsed.adapters[0].parameter, qkv);
  EXPECT_EQ(parsed.adapters[0].row, 0);
  EXPECT_EQ(parsed.adapters[0].scaling, 1.0);
  EXPECT_TRUE(at::equal(parsed.adapters[0].up, file.tensors.at(std::string(module) + up)));
}

INSTANTIATE_TEST_SUITE_P(
    Lora, FusedNamings,
    testing::Values(
        Naming{"lora_unet_double_blocks_0_img_attn_qkv", ".lora_down.weight", ".lora_up.weight"},
        Naming{"diffusion_model.double_blocks.0.img_attn.qkv", ".lora_down.weight", ".lora_up.weight"},
        Naming{"diffusion_model.double_blocks.0.img_attn.qkv", ".lora_A.weight", ".lora_B.weight"},
        Naming{"model.diffusion_model.double_blocks.0.img_attn.qkv", ".lora_A.weight", ".lora_B.weight"},
        Naming{"double_blocks.0.img_attn.qkv", ".lora_A.weight", ".lora_B.weight"},
        Naming{"base_model.model.double_blocks.0.img_attn.qkv", ".lora_A.weight", ".lora_B.weight"}));

struct SplitNamings : LoraTest, testing::WithParamInterface<Naming> {};

TEST_P(SplitNamings, GiveTheRowsOfTheFusedLinear) {
  const auto [module, down, up] = GetParam();
  const ParsedLora parsed = parse(pair(module, kHidden, kHidden, 2, down, up));
  ASSERT_EQ(parsed.adapters.size(), 1u);
  EXPECT_EQ(parsed.adapters[0].parameter, qkv);
  EXPECT_EQ(parsed.adapters[0].row, kHidden);
}

INSTANTIATE_TEST_SUITE_P(
    Lora, SplitNamings,
    testing::Values(
        Naming{"transformer.transformer_blocks.0.attn.to_k", ".lora_A.weight", ".lora_B.weight"},
        Naming{"transformer_blocks.0.attn.to_k", ".lora_A.weight", ".lora_B.weight"},
        Naming{"transformer_blocks.0.attn.to_k", ".lora_A.default.weight", ".lora_B.default.weight"},
        Naming{"base_model.model.transformer_blocks.0.attn.to_k", ".lora_A.weight", ".lora_B.weight"},
        Naming{"base_model.model.transformer.transformer_blocks.0.attn.to_k", ".lora_A.weight",
               ".lora_B.weight"},
        Naming{"transformer.transformer_blocks.0.attn.to_k", ".lora.down.weight", ".lora.up.weight"},
        Naming{"lora_transformer_transformer_blocks_0_attn_to_k", ".lora_down.weight", ".lora_up.weight"}));

struct ClipNamings : LoraTest, testing::WithParamInterface<Naming> {};

TEST_P(ClipNamings, ReachTheTextEncoder) {
  const auto [module, down, up] = GetParam();
  const ParsedLora parsed = parse(pair(module, kHidden, kHidden, 2, down, up));
  ASSERT_EQ(parsed.adapters.size(), 1u);
  EXPECT_EQ(parsed.adapters[0].parameter, clip_q);
}

INSTANTIATE_TEST_SUITE_P(
    Lora, ClipNamings,
    testing::Values(Naming{"lora_te1_text_model_encoder_layers_0_self_attn_q_proj", ".lora_down.weight",
                           ".lora_up.weight"},
                    Naming{"lora_te_text_model_encoder_layers_0_self_attn_q_proj", ".lora_down.weight",
                           ".lora_up.weight"},
                    Naming{"text_encoder.text_model.encoder.layers.0.self_attn.q_proj", ".lora_A.weight",
                           ".lora_B.weight"},
                    Naming{"text_encoder.encoder.layers.0.self_attn.q_proj", ".lora_A.weight",
                           ".lora_B.weight"},
                    Naming{"text_encoder.text_model.encoder.layers.0.self_attn.q_proj",
                           ".lora_linear_layer.down.weight", ".lora_linear_layer.up.weight"},
                    Naming{"text_encoders.clip_l.transformer.text_model.encoder.layers.0.self_attn.q_proj",
                           ".lora_down.weight", ".lora_up.weight"}));

TEST_F(LoraTest, DiffusersHalvesOfTheFinalModulationAreSwapped) {
  const LoraFile file = pair("transformer.norm_out.linear", 2 * kHidden, kHidden);
  const at::Tensor& up = file.tensors.at("transformer.norm_out.linear.lora_B.weight");
  const ParsedLora parsed = parse(file);
  ASSERT_EQ(parsed.adapters.size(), 2u);
  for (const LoraAdapter& adapter : parsed.adapters) {
    EXPECT_EQ(adapter.parameter, modulation);
    EXPECT_TRUE(at::equal(adapter.up, up.narrow(0, kHidden - adapter.row, kHidden)));
  }
  EXPECT_EQ(parse(pair("lora_unet_final_layer_adaLN_modulation_1", 2 * kHidden, kHidden)).adapters.size(),
            1u);
}

TEST_F(LoraTest, AlphaComesFromTheTensorThenTheMetadataThenIsTheRank) {
  LoraFile file = pair("transformer.transformer_blocks.0.attn.to_q", kHidden, kHidden, 16);
  EXPECT_EQ(parse(file).adapters[0].scaling, 1.0);
  file.metadata["lora_adapter_metadata"] = R"({"transformer.lora_alpha": 8, "transformer.r": 16})";
  EXPECT_EQ(parse(file).adapters[0].scaling, 0.5);
  file.metadata["lora_adapter_metadata"] =
      R"({"transformer.lora_alpha": 8, "transformer.alpha_pattern": {"to_k": 3, "attn.to_q": 4, "to_v": 5}})";
  EXPECT_EQ(parse(file).adapters[0].scaling, 0.25);
  file.metadata["lora_adapter_metadata"] =
      R"({"transformer.lora_alpha": 8, "transformer.alpha_pattern": {"^to_q": 3, "^transformer_blocks\\.0.attn.to_q": 2}})";
  EXPECT_EQ(parse(file).adapters[0].scaling, 0.125);
  file.metadata["lora_adapter_metadata"] = R"({"transformer.lora_alpha": 8, "transformer.use_rslora": true})";
  EXPECT_EQ(parse(file).adapters[0].scaling, 2.0);
  file.metadata["lora_adapter_metadata"] = R"({"text_encoder.lora_alpha": 8})";
  EXPECT_EQ(parse(file).adapters[0].scaling, 1.0);
  file.tensors["transformer.transformer_blocks.0.attn.to_q.alpha"] = at::scalar_tensor(1.0, at::kHalf);
  EXPECT_EQ(parse(file).adapters[0].scaling, 1.0 / 16);
}

TEST_F(LoraTest, MetadataOfTheWrongKindIsRefused) {
  LoraFile file = pair("transformer.transformer_blocks.0.attn.to_q", kHidden, kHidden);
  const char* const wrong[] = {
      "{",
      "[1]",
      R"({"transformer.lora_alpha": "many"})",
      R"({"transformer.lora_alpha": 8, "transformer.alpha_pattern": {"to_[qk]": 3}})",
      R"({"transformer.lora_alpha": 8, "transformer.alpha_pattern": {"to_q": []}})",
  };
  for (const char* metadata : wrong) {
    file.metadata["lora_adapter_metadata"] = metadata;
    EXPECT_TRUE(contains(refusal(file), "lora_adapter_metadata")) << metadata;
  }
}

struct ForeignMethods : LoraTest, testing::WithParamInterface<std::pair<const char*, const char*>> {};

TEST_P(ForeignMethods, AreRefusedByNameThoughOtherKeysWouldFit) {
  const auto [suffix, name] = GetParam();
  LoraFile file = pair("lora_unet_double_blocks_0_img_attn_qkv", 3 * kHidden, kHidden, 2, ".lora_down.weight",
                       ".lora_up.weight");
  file.tensors[std::string("lora_unet_img_in") + suffix] = at::ones({2, 2});
  EXPECT_TRUE(contains(refusal(file), name)) << refusal(file);
}

INSTANTIATE_TEST_SUITE_P(Lora, ForeignMethods,
                         testing::Values(std::pair{".lokr_w1", "LoKr"}, std::pair{".hada_w1_a", "LoHa"},
                                         std::pair{".oft_blocks", "OFT"}, std::pair{".oft_diag", "OFT"},
                                         std::pair{".a1.weight", "GLoRA"}, std::pair{".on_input", "IA3"},
                                         std::pair{".lora_mid.weight", "Tucker"},
                                         std::pair{".diff", "difference"}, std::pair{".diff_b", "difference"},
                                         std::pair{".processor.qkv_lora1.down.weight", "XLabs"},
                                         std::pair{".lora_B.bias", "biases"},
                                         std::pair{".query_norm.scale", "Control"}));

TEST_F(LoraTest, UnmatchedKeysAreCountedAndNamedWithTheNearestKnownOnes) {
  LoraFile file = pair("transformer.transformer_blocks.0.attn.to_q", kHidden, kHidden);
  file.tensors["transformer.transformer_blocks.0.attn.to_w.lora_A.weight"] = at::ones({2, kHidden});
  file.tensors["junk"] = at::zeros({1});
  const std::string message = refusal(file);
  EXPECT_TRUE(contains(message, "2 of its 4 keys")) << message;
  EXPECT_TRUE(contains(message, "junk")) << message;
  EXPECT_TRUE(contains(message, "to_w.lora_A.weight (nearest: transformer_blocks.0.attn.to_")) << message;
  EXPECT_TRUE(contains(message, "--lora-lenient")) << message;
  EXPECT_EQ(parse(file).num_matched, 2);
  EXPECT_EQ(parse(file).unmatched.size(), 2u);
}

TEST_F(LoraTest, AFileWithoutAMatchIsAnErrorEvenIfLenient) {
  EXPECT_THROW(parse(pair("lora_unet_down_blocks_0_attentions_0_proj_in", 4, 4)), ConfigError);
  EXPECT_THROW(parse(LoraFile{.source = "empty", .tensors = {}, .metadata = {}}), ConfigError);
  // Embeddings are no linears.
  EXPECT_THROW(parse(pair("text_encoder.embeddings.token_embedding", 9, kHidden)), ConfigError);
}

TEST_F(LoraTest, DamagedAndMisshapenFilesAreRefusedByKey) {
  const std::string module = "transformer.transformer_blocks.0.attn.to_q";
  const LoraFile good = pair(module, kHidden, kHidden);
  const auto with = [&](const std::string& suffix, const at::Tensor& tensor) {
    LoraFile file = good;
    file.tensors[module + suffix] = tensor;
    return refusal(file);
  };
  EXPECT_EQ(refusal(good), "no error");
  EXPECT_TRUE(contains(with(".lora_A.weight", at::zeros({2, 5})), "[2, 5], but this model needs [2, 4]"));
  EXPECT_TRUE(contains(with(".lora_B.weight", at::zeros({4, 3})), "[4, 3], but this model needs [4, 2]"));
  EXPECT_TRUE(contains(with(".lora_A.weight", at::zeros({0, kHidden})), "the rank is 0"));
  EXPECT_TRUE(contains(with(".lora_A.weight", at::scalar_tensor(1.0)), "the rank is 0"));
  EXPECT_TRUE(contains(with(".lora_A.weight", at::full({2, kHidden}, NAN)), "not finite"));
  EXPECT_TRUE(contains(with(".lora_A.weight", at::ones({2, kHidden}, at::kChar)), "not finite, or whole"));
  EXPECT_TRUE(contains(with(".alpha", at::scalar_tensor(INFINITY)), "alpha is inf"));
  EXPECT_TRUE(contains(with(".alpha", at::ones({2})), "alpha is not one number"));
  EXPECT_TRUE(contains(with(".dora_scale", at::ones({1, kHidden})), "norms of columns"));
  EXPECT_TRUE(contains(with(".lora_down.weight", at::zeros({2, kHidden})), "two tensors of one kind"));

  LoraFile half = good;
  half.tensors.erase(module + ".lora_B.weight");
  EXPECT_TRUE(contains(refusal(half), "the up matrix is absent"));
}

TEST_F(LoraTest, ZerosThatBelongToNothingAreLeftOut) {
  LoraFile file = pair("lora_unet_img_in", kHidden, 3, 2, ".lora_down.weight", ".lora_up.weight");
  const std::string embedding = "lora_te1_text_model_embeddings_position_embedding";
  file.tensors[embedding + ".lora_down.weight"] = at::zeros({2, 77});
  file.tensors[embedding + ".lora_up.weight"] = at::zeros({kHidden, 2}, at::kBFloat16);
  file.tensors[embedding + ".alpha"] = at::scalar_tensor(1.0);
  file.tensors["lora_unet_img_in.diff_b"] = at::zeros({kHidden});
  EXPECT_EQ(refusal(file), "no error");
  EXPECT_EQ(parse(file).without_effect.size(), 4u);
  EXPECT_EQ(parse(file).adapters.size(), 1u);

  LoraFile changed = file;
  changed.tensors[embedding + ".lora_down.weight"] = at::ones({2, 77});
  EXPECT_TRUE(contains(refusal(changed), "3 of its 6 keys match no linear")) << refusal(changed);
  changed = file;
  changed.tensors["lora_unet_img_in.diff_b"] = at::full({kHidden}, NAN);
  EXPECT_TRUE(contains(refusal(changed), "full weight difference")) << refusal(changed);
  file.tensors.erase("lora_unet_img_in.lora_down.weight");
  file.tensors.erase("lora_unet_img_in.lora_up.weight");
  EXPECT_TRUE(contains(refusal(file), "none of its 4 keys")) << refusal(file);
}

TEST_F(LoraTest, AnAlphaAloneChangesNothing) {
  LoraFile file = pair("lora_unet_img_in", kHidden, 3, 2, ".lora_down.weight", ".lora_up.weight");
  file.tensors["lora_unet_final_layer_adaLN_modulation_1.alpha"] = at::scalar_tensor(4.0);
  EXPECT_EQ(refusal(file), "no error");
  EXPECT_EQ(parse(file).adapters.size(), 1u);
}

/// y of the fused linear, as the model computes it.
at::Tensor product(nn::Parameter& weight, nn::Parameter& bias, const at::Tensor& x) {
  const at::NoGradGuard no_grad;
  return nn::linear(x, weight, &bias);
}

TEST_F(LoraTest, SeveralAdaptersAddUpAndLeaveNoTrace) {
  nn::Parameter& bias = parameters[1];
  const at::Tensor x = at::randn({2, 3, kHidden}, at::kDouble);
  const at::Tensor base = product(*qkv, bias, x);
  const ParsedLora a =
      parse(pair("double_blocks.0.img_attn.qkv", 3 * kHidden, kHidden, 8));  // rank above the width
  const ParsedLora b = parse(pair("transformer.transformer_blocks.0.attn.to_v", kHidden, kHidden));
  const auto delta = [&](const LoraAdapter& adapter) {
    at::Tensor full = at::zeros({3 * kHidden, kHidden}, at::kDouble);
    full.narrow(0, adapter.row, adapter.up.size(0))
        .copy_(adapter.up.to(at::kDouble).mm(adapter.down.to(at::kDouble)));
    return full;
  };
  const auto expected = [&](double scale_a, double scale_b) {
    return at::linear(x, qkv->value + scale_a * delta(a.adapters[0]) + scale_b * delta(b.adapters[0]),
                      bias.value);
  };

  attach_lora("a", a.adapters, 0.7);
  attach_lora("b", b.adapters, -0.8);
  EXPECT_TRUE(at::allclose(product(*qkv, bias, x), expected(0.7, -0.8), 1e-10, 1e-12));
  detach_lora("a", targets[0].parameters);
  EXPECT_TRUE(at::allclose(product(*qkv, bias, x), expected(0, -0.8), 1e-10, 1e-12));
  detach_lora("b", targets[0].parameters);
  EXPECT_TRUE(at::equal(product(*qkv, bias, x), base));
  attach_lora("a", a.adapters, 0);
  EXPECT_TRUE(at::allclose(product(*qkv, bias, x), base, 1e-12, 1e-12));
}

TEST_F(LoraTest, TakenAwayInAnyOrderTheyLeaveTheBytesOfBf16Weights) {
  nn::Parameter& bias = parameters[1];
  for (nn::Parameter* parameter : {qkv, &bias}) parameter->value = parameter->value.to(at::kBFloat16);
  const at::Tensor before = qkv->value.clone();
  const at::Tensor x = at::randn({2, 3, kHidden}).to(at::kBFloat16);
  const auto a = parse(pair("double_blocks.0.img_attn.qkv", 3 * kHidden, kHidden)).adapters;
  const auto b = parse(pair("double_blocks.0.img_attn.qkv", 3 * kHidden, kHidden)).adapters;
  attach_lora("b", b, 0.8);
  const at::Tensor b_alone = product(*qkv, bias, x);
  detach_lora("b", targets[0].parameters);

  attach_lora("a", a, 0.7);
  attach_lora("b", b, 0.8);
  EXPECT_FALSE(at::equal(product(*qkv, bias, x), b_alone));
  detach_lora("a", targets[0].parameters);
  EXPECT_TRUE(at::equal(product(*qkv, bias, x), b_alone));
  detach_lora("b", targets[0].parameters);
  EXPECT_TRUE(at::equal(qkv->value, before));
  EXPECT_TRUE(qkv->low_rank.empty());
}

TEST_F(LoraTest, DoraSetsTheNormOfEachRow) {
  nn::Parameter& bias = parameters[1];
  LoraFile file = pair("lora_unet_double_blocks_0_img_attn_qkv", 3 * kHidden, kHidden, 2, ".lora_down.weight",
                       ".lora_up.weight");
  const at::Tensor magnitude = at::rand({3 * kHidden, 1}) + 0.5;
  file.tensors["lora_unet_double_blocks_0_img_attn_qkv.dora_scale"] = magnitude;
  const ParsedLora parsed = parse(file);
  const LoraAdapter& adapter = parsed.adapters[0];
  const at::Tensor adapted = qkv->value + 0.5 * adapter.up.to(at::kDouble).mm(adapter.down.to(at::kDouble));
  const at::Tensor weight = magnitude.to(at::kDouble) * adapted / adapted.norm(2, {1}, true);

  const at::Tensor x = at::randn({5, kHidden}, at::kDouble);
  attach_lora("dora", parsed.adapters, 0.5);
  EXPECT_TRUE(at::allclose(product(*qkv, bias, x), at::linear(x, weight, bias.value), 1e-10, 1e-12));
}

TEST_F(LoraTest, ScalesThatAreNotFiniteAndGradientsAreRefused) {
  const ParsedLora parsed = parse(pair("double_blocks.0.img_attn.qkv", 3 * kHidden, kHidden));
  EXPECT_THROW(attach_lora("a", parsed.adapters, NAN), ConfigError);
  EXPECT_THROW(attach_lora("a", parsed.adapters, std::numeric_limits<double>::infinity()), ConfigError);
  EXPECT_TRUE(qkv->low_rank.empty());
  attach_lora("a", parsed.adapters, 1);
  EXPECT_THROW(nn::linear(at::randn({1, kHidden}, at::kDouble), *qkv, nullptr), InternalError);
}

}  // namespace
}  // namespace flowshard::models
