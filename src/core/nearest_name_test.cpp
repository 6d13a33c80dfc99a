#include "core/nearest_name.h"

#include <gtest/gtest.h>

#include <vector>

namespace flowshard {
namespace {

TEST(NearestName, FindsTheMisspeltKey) {
  const std::vector<std::string> keys = {"train.steps", "train.batch_size", "optimizer.lr", "lora.rank"};
  EXPECT_EQ(nearest_name("train.step", keys), "train.steps");
  EXPECT_EQ(nearest_name("train.bacth_size", keys), "train.batch_size");
  EXPECT_EQ(nearest_name("optimiser.lr", keys), "optimizer.lr");
  EXPECT_EQ(nearest_name("lora.rank", keys), "lora.rank");
}

TEST(NearestName, FindsAKeyBehindAPrefix) {
  const std::vector<std::string> keys = {"model.diffusion_model.img_in.bias",
                                         "model.diffusion_model.double_blocks.0.img_attn.qkv.weight"};
  EXPECT_EQ(nearest_name("double_blocks.0.img_attn.qkv.weight", keys), keys[1]);
}

TEST(NearestName, SwappedLettersAreOneEdit) {
  // "lr" differs from "rl" in one of two letters, which is near enough; from "xy" in both.
  EXPECT_EQ(nearest_name("lr", std::vector<std::string>{"rl"}), "rl");
  EXPECT_EQ(nearest_name("lr", std::vector<std::string>{"xy"}), std::nullopt);
}

TEST(NearestName, OnlyWithinTheShareThatIsAskedFor) {
  const std::vector<std::string> keys = {"steps", "output"};
  EXPECT_EQ(nearest_name("step", keys, 1.0 / 3), "steps");
  EXPECT_EQ(nearest_name("outptu", keys, 1.0 / 3), "output");
  EXPECT_EQ(nearest_name("text", keys), std::nullopt);
  EXPECT_EQ(nearest_name("stops_", keys), "steps");
  EXPECT_EQ(nearest_name("stop_s", keys, 1.0 / 6), std::nullopt);
}

TEST(NearestName, NothingIsNear) {
  EXPECT_EQ(nearest_name("steps", std::vector<std::string>{"autoencoder.scale"}), std::nullopt);
  EXPECT_EQ(nearest_name("steps", std::vector<std::string>{}), std::nullopt);
  EXPECT_EQ(nearest_name("", std::vector<std::string>{"a"}), std::nullopt);
}

}  // namespace
}  // namespace flowshard
