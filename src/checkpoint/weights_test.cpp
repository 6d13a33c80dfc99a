#include "checkpoint/weights.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "core/temporary_folder.h"

namespace flowshard::checkpoint {
namespace {

namespace fs = std::filesystem;

class WeightsTest : public testing::Test {
 protected:
  void write(const std::string& name, const std::vector<std::string>& keys) const {
    std::vector<NamedTensor> tensors;
    for (const std::string& key : keys)
      tensors.emplace_back(key, at::full({2}, static_cast<double>(key.back())));
    write_safetensors(folder_.path() / name, tensors);
  }
  void write_index(const std::string& weight_map) const {
    std::ofstream(folder_.path() / "m.safetensors.index.json")
        << R"({"metadata":{},"weight_map":)" << weight_map << "}";
  }
  template <typename ErrorType>
  void expect_error(const std::vector<std::string>& parts) const {
    try {
      Weights::open(folder_.path());
      ADD_FAILURE() << "no error";
    } catch (const ErrorType& error) {
      for (const std::string& part : parts) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
            << error.what() << " lacks " << part;
      }
    }
  }

  TemporaryFolder folder_;
  const std::string first_ = "m-00001-of-00002.safetensors";
  const std::string second_ = "m-00002-of-00002.safetensors";
  const std::string good_map_ = R"({"a":"m-00001-of-00002.safetensors","b":"m-00002-of-00002.safetensors"})";
};

TEST_F(WeightsTest, OpensFileFolderAndShards) {
  write("one.safetensors", {"a", "b"});
  EXPECT_EQ(Weights::open(folder_.path() / "one.safetensors").keys(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(Weights::open(folder_.path()).keys(), (std::vector<std::string>{"a", "b"}));

  write(first_, {"a"});
  write(second_, {"b"});
  write_index(good_map_);
  const Weights weights = Weights::open(folder_.path());
  EXPECT_EQ(weights.keys(), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(at::equal(weights.tensor("b"), at::full({2}, double{'b'})));
  EXPECT_EQ(weights.info("b").shape, (std::vector<int64_t>{2}));
  EXPECT_FALSE(weights.contains("c"));
  EXPECT_THROW(weights.tensor("c"), CheckpointError);
}

TEST_F(WeightsTest, NothingToOpenIsAMistakeOfTheUser) {
  expect_error<ConfigError>({"holds no safetensors file"});
  EXPECT_THROW(Weights::open(folder_.path() / "none"), ConfigError);
  write("one.safetensors", {"a"});
  write("two.safetensors", {"a"});
  expect_error<ConfigError>({"2 safetensors files", "index"});
}

TEST_F(WeightsTest, AllMissingShardsAreListed) {
  write_index(R"({"a":"s1.safetensors","b":"s2.safetensors","c":"s3.safetensors"})");
  write("s2.safetensors", {"b"});
  expect_error<CheckpointError>({"2 of the 3", "s1.safetensors, s3.safetensors"});
}

TEST_F(WeightsTest, StaleIndexIsNamedWithKeyAndShard) {
  write(first_, {"a"});
  write(second_, {"b"});
  const auto map_all_to = [](const std::string& shard) {
    return R"({"a":")" + shard + R"(","b":")" + shard + "\"}";
  };
  write_index(map_all_to(first_));
  expect_error<CheckpointError>({"m.safetensors.index.json", "out of date", second_});
  fs::remove(folder_.path() / second_);
  expect_error<CheckpointError>({"m.safetensors.index.json", "\"b\"", first_, "holds no such tensor"});

  write(second_, {"b", "c"});
  write_index(good_map_);
  expect_error<CheckpointError>({second_, "\"c\"", "does not name"});
  write(second_, {"a", "b"});
  expect_error<CheckpointError>({second_, "\"a\"", "places in " + first_});
}

TEST_F(WeightsTest, IndexThatLeavesItsFolderOrSaysNothingIsRefused) {
  write_index(R"({"a":"../x.safetensors"})");
  expect_error<CheckpointError>({"\"a\"", "no file name"});
  write_index(R"({"a":7})");
  expect_error<CheckpointError>({"\"a\"", "7", "no file name"});
  write_index("{}");
  expect_error<CheckpointError>({"no weight_map"});
  write_index("{");
  expect_error<CheckpointError>({"JSON is damaged"});
  write_index(R"({"a":"x","a":"y"})");
  expect_error<CheckpointError>({"\"a\" stands twice"});
}

class Filling : public WeightsTest {
 protected:
  Weights weights_of(const std::vector<NamedTensor>& tensors) const {
    write_safetensors(folder_.path() / "w.safetensors", tensors);
    return Weights::open(folder_.path() / "w.safetensors");
  }
};

TEST_F(Filling, JoinsPartsAndConvertsTypes) {
  const Weights weights = weights_of({{"q", at::full({2, 3}, 1.0)},
                                      {"k", at::full({1, 3}, 2.0, at::kHalf)},
                                      {"conv", at::full({4, 3, 1, 1}, 3.0)},
                                      {"position_ids", at::ones({9}, at::kLong)}});
  at::Tensor qk = at::zeros({3, 3});
  at::Tensor linear = at::zeros({4, 3}, at::kBFloat16);
  fill_parameters(weights,
                  {{.parameter = "qk", .key = "k", .row = 2, .rows = 1},
                   {.parameter = "qk", .key = "q", .row = 0, .rows = 2},
                   {.parameter = "linear", .key = "conv"}},
                  {{"qk", qk}, {"linear", linear}}, {"position_ids"});
  EXPECT_TRUE(at::equal(qk, at::cat({at::full({2, 3}, 1.0), at::full({1, 3}, 2.0)})));
  EXPECT_TRUE(at::equal(linear, at::full({4, 3}, 3.0, at::kBFloat16)));
}

TEST_F(Filling, HalvesStoredTheOtherWayRoundAreSwapped) {
  const Weights weights = weights_of({{"scale_shift", at::arange(6.0).view({6, 1})}});
  at::Tensor shift_scale = at::zeros({6});
  const TensorNames names = {{.parameter = "p", .key = "scale_shift", .row = 0, .rows = 3, .key_row = 3},
                             {.parameter = "p", .key = "scale_shift", .row = 3, .rows = 3, .key_row = 0}};
  fill_parameters(weights, names, {{"p", shift_scale}});
  EXPECT_TRUE(at::equal(shift_scale, at::tensor({3.0F, 4.0F, 5.0F, 0.0F, 1.0F, 2.0F})));

  const Weights longer = weights_of({{"scale_shift", at::arange(7.0)}});
  EXPECT_THROW(fill_parameters(longer, names, {{"p", shift_scale}}), CheckpointError);
  EXPECT_THROW(fill_parameters(weights, {names[0], names[0]}, {{"p", shift_scale}}), InternalError);
}

TEST_F(Filling, EveryFaultIsNamedBeforeAnythingIsCopied) {
  const Weights weights = weights_of({{"model.in.bias", at::ones({2})},
                                      {"whole", at::ones({3, 2})},
                                      {"flat", at::ones({6})},
                                      {"counts", at::ones({2}, at::kInt)}});
  at::Tensor bias = at::zeros({2}), whole = at::zeros({3, 2}), flat = at::zeros({2, 3}),
             counts = at::zeros({2});
  try {
    fill_parameters(weights,
                    {{"whole", "whole"}, {"flat", "flat"}, {"counts", "counts"}, {"bias", "in.bias"}},
                    {{"whole", whole}, {"bias", bias}, {"flat", flat}, {"counts", counts}});
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_EQ(
        std::string(error.what()),
        weights.source() +
            ": its tensors do not fit the model: 1 missing (\"in.bias\"; the file has \"model.in.bias\"); "
            "1 unexpected (\"model.in.bias\"); 2 of another shape or kind "
            "(\"flat\": Float [6], the model has Float [2, 3], \"counts\": Int [2], the model has Float "
            "[2])");
  }
  EXPECT_TRUE(at::equal(whole, at::zeros({3, 2})));
}

TEST_F(Filling, ManyFaultsAreCountedAndAFewNamed) {
  const Weights weights = weights_of({{"x1", at::ones({1})},
                                      {"x2", at::ones({1})},
                                      {"x3", at::ones({1})},
                                      {"x4", at::ones({1})},
                                      {"x5", at::ones({1})}});
  try {
    fill_parameters(weights, {}, {});
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_NE(std::string(error.what()).find("5 unexpected (\"x1\", \"x2\", \"x3\", ...)"), std::string::npos)
        << error.what();
  }
}

TEST_F(Filling, NamesThatDoNotCoverAParameterOnceAreOurBug) {
  const Weights weights = weights_of({{"a", at::ones({2})}});
  at::Tensor three = at::zeros({3});
  EXPECT_THROW(fill_parameters(weights, {{"p", "a", 0, 2}}, {{"p", three}}), InternalError);
  EXPECT_THROW(fill_parameters(weights, {{"p", "a", 0, 2}, {"p", "a", 1, 2}}, {{"p", three}}), InternalError);
  EXPECT_THROW(fill_parameters(weights, {{"p", "a", 2, 2}}, {{"p", three}}), InternalError);
  EXPECT_THROW(fill_parameters(weights, {{"q", "a"}}, {{"p", three}}), InternalError);
  EXPECT_THROW(fill_parameters(weights, {}, {{"p", three}}), InternalError);
}

}  // namespace
}  // namespace flowshard::checkpoint
