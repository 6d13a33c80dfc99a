#include "models/text_encoder/t5_encoder.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "core/temporary_folder.h"

namespace flowshard::models {
namespace {

const T5Config kTiny = {
    .vocab_size = 20, .d_model = 8, .d_kv = 8, .d_ff = 12, .num_layers = 1, .num_heads = 1};
const std::string kBias = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight";

at::Tensor& value(T5Encoder& model, const std::string& name) {
  for (nn::Parameter* parameter : model.parameters()) {
    if (parameter->name == name) return parameter->value;
  }
  throw std::out_of_range(name);
}

void fill_randomly(T5Encoder& model) {
  at::manual_seed(3);
  for (nn::Parameter* parameter : model.parameters()) parameter->value = at::randn(parameter->shape);
}

at::Tensor rms(const at::Tensor& x) { return x / (x.square().mean(-1, true) + 1e-6).sqrt(); }

/// Bucket of a distance for 32 buckets and maximum 128, in whole numbers: the shared buckets begin where
/// (distance / 8)^2 reaches 1, 2, 4, ... 128.
int64_t bucket_of_distance(int64_t distance) {
  if (distance < 8) return distance;
  int64_t bucket = 8;
  while (bucket < 15 && distance * distance >= int64_t{64} << (bucket - 7)) ++bucket;
  return bucket;
}

TEST(T5RelativeBuckets, EqualTheIntegerFormulation) {
  const int64_t length = 600;
  const at::Tensor buckets = t5_relative_buckets(length, 32, 128);
  ASSERT_EQ(buckets.numel(), 2 * length - 1);
  for (int64_t offset = 1 - length; offset < length; ++offset) {
    const int64_t expected = bucket_of_distance(std::abs(offset)) + (offset > 0 ? 16 : 0);
    EXPECT_EQ(buckets[offset + length - 1].item<int64_t>(), expected) << "offset " << offset;
  }
}

TEST(T5Encoder, BiasTowardsTheNextTokenCopiesItsValue) {
  T5Encoder model(kTiny);
  fill_randomly(model);
  const std::string attention = "encoder.block.0.layer.0.SelfAttention.";
  value(model, attention + "q.weight").zero_();
  value(model, attention + "v.weight") = at::eye(8);
  value(model, attention + "o.weight") = at::eye(8);
  value(model, "encoder.block.0.layer.0.layer_norm.weight").fill_(1);
  value(model, "encoder.block.0.layer.1.DenseReluDense.wo.weight").zero_();
  value(model, "encoder.final_layer_norm.weight").fill_(2);
  value(model, kBias).zero_()[16 + 1].fill_(60);  // key one after the query

  const at::Tensor ids = at::tensor({4, 9, 2, 17}, at::kLong).unsqueeze(0);
  const at::Tensor x = at::embedding(value(model, "shared.weight"), ids);
  const at::Tensor expected = 2 * rms(x.narrow(1, 0, 3) + rms(x).narrow(1, 1, 3));
  EXPECT_TRUE(at::allclose(model.forward(ids).narrow(1, 0, 3), expected, 1e-5, 1e-5));
}

TEST(T5Encoder, ScoresAreNotScaledAndFeedForwardIsGated) {
  T5Encoder model(kTiny);
  fill_randomly(model);
  const at::Tensor ids = at::tensor({1, 5, 5, 0, 3, 19}, at::kLong).view({2, 3});
  const auto w = [&](const std::string& name) {
    return value(model, "encoder.block.0.layer." + name + ".weight");
  };
  at::Tensor x = at::embedding(value(model, "shared.weight"), ids);
  const at::Tensor y = rms(x) * w("0.layer_norm");
  at::Tensor bias = at::empty({3, 3});
  for (int64_t query = 0; query < 3; ++query) {
    for (int64_t key = 0; key < 3; ++key) {
      bias[query][key] = value(model, kBias)[std::abs(key - query) + (key > query ? 16 : 0)][0];
    }
  }
  const at::Tensor scores =
      y.matmul(w("0.SelfAttention.q").t()).matmul(y.matmul(w("0.SelfAttention.k").t()).transpose(1, 2)) +
      bias;
  x = x + scores.softmax(-1).matmul(y.matmul(w("0.SelfAttention.v").t())).matmul(w("0.SelfAttention.o").t());
  const at::Tensor z = rms(x) * w("1.layer_norm");
  const at::Tensor h = z.matmul(w("1.DenseReluDense.wi_0").t());
  const at::Tensor gelu = 0.5 * h * (1 + at::tanh(std::sqrt(2 / M_PI) * (h + 0.044715 * h.pow(3))));
  x = x + (gelu * z.matmul(w("1.DenseReluDense.wi_1").t())).matmul(w("1.DenseReluDense.wo").t());
  const at::Tensor expected = rms(x) * value(model, "encoder.final_layer_norm.weight");
  EXPECT_TRUE(at::allclose(model.forward(ids), expected, 1e-4, 1e-5));
}

TEST(T5Encoder, CachedBiasFollowsLengthAndWeight) {
  T5Encoder model(kTiny);
  fill_randomly(model);
  const at::Tensor ids = at::arange(8).view({1, 8});
  const at::Tensor short_before = model.forward(ids.narrow(1, 0, 5));
  const at::Tensor before = model.forward(ids);
  EXPECT_TRUE(at::equal(model.forward(ids.narrow(1, 0, 5)), short_before));
  EXPECT_TRUE(at::equal(model.forward(ids), before));
  value(model, kBias).mul_(-1);
  EXPECT_FALSE(at::allclose(model.forward(ids), before));
  value(model, kBias) = -value(model, kBias);
  EXPECT_TRUE(at::equal(model.forward(ids), before));
}

TEST(T5Encoder, RefusesIdsOutsideTheVocabulary) {
  T5Encoder model(kTiny);
  fill_randomly(model);
  EXPECT_THROW(model.forward(at::tensor({3, 20}, at::kLong).view({1, 2})), ConfigError);
  EXPECT_THROW(model.forward(at::tensor({-1, 2}, at::kLong).view({1, 2})), ConfigError);
}

TEST(T5Names, ReadTheTiedKeyOnlyIfSharedIsAbsent) {
  const auto key_of_embedding = [](const std::vector<std::string>& stored) {
    for (const TensorPart& part : t5_names(kTiny, stored)) {
      if (part.parameter == "shared.weight") return part.key;
    }
    return std::string();
  };
  EXPECT_EQ(key_of_embedding({}), "shared.weight");
  EXPECT_EQ(key_of_embedding({"encoder.embed_tokens.weight"}), "encoder.embed_tokens.weight");
  EXPECT_EQ(key_of_embedding({"encoder.embed_tokens.weight", "shared.weight"}), "shared.weight");
}

std::string config_error(const std::string& content) {
  const TemporaryFolder folder;
  const auto file = folder / "config.json";
  std::ofstream(file) << content;
  try {
    T5Config::from_file(file);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(T5Config, ReadsAndRefuses) {
  const std::string sizes = R"("vocab_size": 9, "d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 2)";
  const std::string type = R"({"model_type": "t5", "feed_forward_proj": "gated-gelu", )";
  EXPECT_EQ(config_error(type + sizes + R"(, "num_heads": 2})"), "");
  EXPECT_NE(config_error(type + sizes + "}").find("num_heads"), std::string::npos);
  EXPECT_NE(config_error(R"({"model_type": "umt5"})").find("model_type is \"umt5\""), std::string::npos);
  EXPECT_NE(config_error(R"({"model_type": "t5", "feed_forward_proj": "relu"})").find("gated-gelu"),
            std::string::npos);
  EXPECT_NE(config_error(type + sizes + R"(, "num_heads": 2, "is_decoder": true})").find("is_decoder"),
            std::string::npos);
  EXPECT_NE(config_error(type + sizes + R"(, "num_heads": 2, "relative_attention_max_distance": 8})")
                .find("relative_attention_max_distance is 8"),
            std::string::npos);
}

}  // namespace
}  // namespace flowshard::models
