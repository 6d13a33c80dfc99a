#include <gtest/gtest.h>

#include "checkpoint/weights.h"
#include "core/error.h"
#include "core/temporary_folder.h"

namespace flowshard::checkpoint {
namespace {

class ScaledWeights : public testing::Test {
 protected:
  Weights weights_of(const std::vector<NamedTensor>& tensors) const {
    write_safetensors(folder_.path() / "w.safetensors", tensors);
    return Weights::open(folder_.path() / "w.safetensors");
  }
  at::Tensor filled(const std::vector<NamedTensor>& tensors, at::ScalarType dtype = at::kFloat) const {
    const at::Tensor parameter = at::zeros({4, 2}, dtype);
    fill_parameters(weights_of(tensors), {{.parameter = "p", .key = "a.weight"}}, {{"p", parameter}});
    return parameter;
  }
  void expect_error(const std::vector<NamedTensor>& tensors, const std::string& words) const {
    try {
      filled(tensors);
      ADD_FAILURE() << "no error; wanted: " << words;
    } catch (const CheckpointError& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  }

  // Exact in fp8: the bytes 0x38, 0x7E (1, 448), the least subnormal 2^-9, ...
  const at::Tensor values_ =
      at::tensor({1.0F, 448.0F, -0.001953125F, 0.0F, -1.5F, 3.25F, 20.0F, -9.0F}).view({4, 2});
  const at::Tensor fp8_ = values_.to(at::kFloat8_e4m3fn);
  TemporaryFolder folder_;
};

TEST_F(ScaledWeights, PlainFp8IsCastExactly) {
  EXPECT_TRUE(at::equal(filled({{"a.weight", fp8_}}), values_));
  EXPECT_TRUE(at::equal(filled({{"a.weight", fp8_}}, at::kBFloat16), values_.to(at::kBFloat16)));
}

TEST_F(ScaledWeights, OneScaleUnderEitherName) {
  const at::Tensor scale = at::tensor({0.3F});
  for (const char* name : {"a.scale_weight", "a.weight_scale"}) {
    const std::vector<NamedTensor> file = {{"a.weight", fp8_},
                                           {name, scale},
                                           {"a.scale_input", at::tensor({9.0F})},
                                           {"scaled_fp8", at::empty({0}, at::kFloat8_e4m3fn)}};
    EXPECT_TRUE(at::equal(filled(file), values_ * 0.3F)) << name;
    EXPECT_TRUE(at::equal(filled(file, at::kBFloat16), (values_ * 0.3F).to(at::kBFloat16))) << name;
  }
  EXPECT_TRUE(at::equal(filled({{"a.weight", fp8_}, {"a.scale_weight", at::full({}, 0.5)}}), values_ * 0.5));
  // A weight of any other floating type, and of fp32 the file itself stays as it is.
  EXPECT_TRUE(at::equal(filled({{"a.weight", values_}, {"a.scale_weight", scale}}), values_ * 0.3F));
}

TEST_F(ScaledWeights, ScaleOfEachRowFollowsItsRow) {
  const at::Tensor scale = at::tensor({0.3F, 2.0F, 0.7F, 5.0F}).view({4, 1});
  EXPECT_TRUE(at::equal(filled({{"a.weight", fp8_}, {"a.weight_scale", scale}}), values_ * scale));

  // Halves that are stored the other way round.
  const at::Tensor swapped = at::zeros({4, 2});
  fill_parameters(weights_of({{"a.weight", fp8_}, {"a.weight_scale", scale.flatten()}}),
                  {{.parameter = "p", .key = "a.weight", .row = 0, .rows = 2, .key_row = 2},
                   {.parameter = "p", .key = "a.weight", .row = 2, .rows = 2, .key_row = 0}},
                  {{"p", swapped}});
  EXPECT_TRUE(at::equal(swapped, (values_ * scale).roll({2}, {0})));
}

TEST_F(ScaledWeights, UnsoundScalesAreRefused) {
  const at::Tensor scale = at::tensor({0.5F});
  expect_error({{"a.weight", fp8_}, {"b.scale_weight", scale}},
               "\"b.scale_weight\" is a scale without its weight");
  expect_error({{"a.weight", fp8_}, {"b.input_scale", scale}},
               "\"b.input_scale\" is a scale without its weight");
  expect_error({{"a.weight", fp8_}, {"a.scale_weight", scale}, {"a.weight_scale", scale}}, "two scales");
  expect_error({{"a.weight", fp8_}, {"a.weight_scale", at::ones({3})}}, "\"a.weight_scale\": Float [3]");
  expect_error({{"a.weight", fp8_}, {"a.weight_scale", at::ones({2, 2})}},
               "\"a.weight_scale\": Float [2, 2]");
  expect_error({{"a.weight", fp8_}, {"a.weight_scale", at::ones({1}, at::kInt)}},
               "\"a.weight_scale\": Int [1]");
}

TEST_F(ScaledWeights, LayerMarkersNameAFormatThatIsRead) {
  const auto marker = [](const std::string& json) {
    return at::from_blob(const_cast<char*>(json.data()), {static_cast<int64_t>(json.size())}, at::kByte)
        .clone();
  };
  const at::Tensor scale = at::tensor({0.5F});
  EXPECT_TRUE(at::equal(filled({{"a.weight", fp8_},
                                {"a.weight_scale", scale},
                                {"a.comfy_quant", marker(R"({"format": "float8_e4m3fn"})")}}),
                        values_ * 0.5));
  expect_error({{"a.weight", fp8_}, {"a.comfy_quant", marker(R"({"format": "nvfp4"})")}}, "nvfp4");
  expect_error({{"a.weight", fp8_}, {"a.comfy_quant", marker("{")}}, "JSON is damaged");
}

}  // namespace
}  // namespace flowshard::checkpoint
