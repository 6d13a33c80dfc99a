#include "models/autoencoder/autoencoder.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/temporary_folder.h"

namespace flowshard::models {
namespace {

AutoencoderConfig tiny() {
  return {.block_out_channels = {4, 8, 8}, .layers_per_block = 1, .latent_channels = 3, .norm_num_groups = 2};
}

void fill_randomly(Autoencoder& model) {
  at::manual_seed(3);
  for (nn::Parameter* parameter : model.parameters()) parameter->value = at::randn(parameter->shape) * 0.2;
}

at::Tensor& value(Autoencoder& model, const std::string& name) {
  for (nn::Parameter* parameter : model.parameters()) {
    if (parameter->name == name) return parameter->value;
  }
  throw std::out_of_range(name);
}

/// A 3x3 convolution that passes each channel on, from the place (row, column) of its window.
at::Tensor pick(int64_t channels, int64_t row, int64_t column) {
  at::Tensor weight = at::zeros({channels, channels, 3, 3});
  weight.select(2, row).select(2, column).copy_(at::eye(channels));
  return weight;
}

/// Two levels of equal width in which everything but the change of resolution passes its input on.
struct PassThrough {
  PassThrough() {
    for (nn::Parameter* parameter : model.parameters()) {
      const std::string& name = parameter->name;
      const bool norm_scale = name.find("norm") != std::string::npos && name.ends_with("weight");
      parameter->value = norm_scale ? at::ones(parameter->shape) : at::zeros(parameter->shape);
    }
    for (const std::string name : {"encoder.conv_in", "decoder.conv_in", "decoder.conv_out"}) {
      value(model, name + ".weight") = pick(2, 1, 1);
    }
    value(model, "encoder.conv_out.weight") = at::cat({pick(2, 1, 1), 100 * pick(2, 1, 1)});
  }
  Autoencoder model{{.block_out_channels = {2, 2},
                     .layers_per_block = 1,
                     .in_channels = 2,
                     .latent_channels = 2,
                     .norm_num_groups = 1}};
};

at::Tensor norm_silu(const at::Tensor& x) { return at::silu(at::group_norm(x, 1, {}, {}, 1e-6)); }

TEST(Autoencoder, DownsamplingPadsRightAndBelow) {
  PassThrough pass;
  const at::Tensor images = at::randn({1, 2, 6, 4});
  value(pass.model, "encoder.down.0.downsample.conv.weight") = pick(2, 0, 0);
  const at::Tensor first = images.slice(2, 0, 6, 2).slice(3, 0, 4, 2);
  EXPECT_TRUE(at::allclose(pass.model.encode(images).mean, norm_silu(first), 1e-4, 1e-5));

  value(pass.model, "encoder.down.0.downsample.conv.weight") = pick(2, 2, 2);
  const at::Tensor last = at::constant_pad_nd(images, {0, 1, 0, 1}).slice(2, 2, 7, 2).slice(3, 2, 5, 2);
  EXPECT_TRUE(at::allclose(pass.model.encode(images).mean, norm_silu(last), 1e-4, 1e-5));
}

TEST(Autoencoder, UpsamplingRepeatsEachPlace) {
  PassThrough pass;
  const at::Tensor latents = at::randn({2, 2, 3, 5});
  value(pass.model, "decoder.up.1.upsample.conv.weight") = pick(2, 1, 1);
  const at::Tensor repeated = latents.repeat_interleave(2, 2).repeat_interleave(2, 3);
  EXPECT_TRUE(at::allclose(pass.model.decode(latents), norm_silu(repeated), 1e-4, 1e-5));
}

TEST(Autoencoder, LogVarianceIsClamped) {
  PassThrough pass;
  value(pass.model, "encoder.down.0.downsample.conv.weight") = pick(2, 0, 0);
  const auto posterior = pass.model.encode(at::randn({1, 2, 8, 8}));
  EXPECT_TRUE(at::equal(posterior.logvar, (100 * posterior.mean).clamp(-30, 20)));
  EXPECT_EQ(posterior.logvar.max().item<float>(), 20);
}

TEST(Autoencoder, AttentionMixesPlacesWithOneHead) {
  PassThrough pass;
  // Zero queries: every place receives the mean of all values.
  value(pass.model, "decoder.mid.attn_1.v.weight") = at::eye(2).view({2, 2, 1, 1});
  value(pass.model, "decoder.mid.attn_1.proj_out.weight") = at::eye(2).view({2, 2, 1, 1});
  value(pass.model, "decoder.up.1.upsample.conv.weight") = pick(2, 1, 1);
  const at::Tensor latents = at::randn({1, 2, 3, 2});
  const at::Tensor mean = at::group_norm(latents, 1, {}, {}, 1e-6).mean({2, 3}, true);
  const at::Tensor expected = norm_silu((latents + mean).repeat_interleave(2, 2).repeat_interleave(2, 3));
  EXPECT_TRUE(at::allclose(pass.model.decode(latents), expected, 1e-4, 1e-5));
}

TEST(Autoencoder, ShapesOfBatchesAndUnevenSizes) {
  AutoencoderConfig config = tiny();
  config.use_quant_conv = config.use_post_quant_conv = true;
  Autoencoder model(config);
  fill_randomly(model);
  const auto posterior = model.encode(at::randn({2, 3, 40, 24}));
  EXPECT_EQ(posterior.mean.sizes(), (std::vector<int64_t>{2, 3, 10, 6}));
  EXPECT_EQ(posterior.logvar.sizes(), posterior.mean.sizes());
  EXPECT_EQ(model.decode(posterior.mean).sizes(), (std::vector<int64_t>{2, 3, 40, 24}));
  EXPECT_THROW(model.encode(at::randn({1, 3, 42, 24})), InternalError);
}

TEST(Autoencoder, ResultsDoNotDependOnTheOthersInTheBatch) {
  Autoencoder model({.block_out_channels = {8, 16, 32, 64}, .layers_per_block = 1, .norm_num_groups = 2});
  fill_randomly(model);
  const at::Tensor images = at::randn({5, 3, 32, 32});
  const at::Tensor latents = model.encode(images).mean;
  const at::Tensor decoded = model.decode(latents);
  for (const auto& [first, count] : {std::pair{0, 1}, {1, 1}, {1, 2}, {2, 3}}) {
    EXPECT_TRUE(at::equal(model.encode(images.narrow(0, first, count)).mean, latents.narrow(0, first, count)))
        << first << ' ' << count;
    EXPECT_TRUE(at::equal(model.decode(latents.narrow(0, first, count)), decoded.narrow(0, first, count)))
        << first << ' ' << count;
  }
}

TEST(AutoencoderNames, FollowDiffusers) {
  AutoencoderConfig config = tiny();
  config.use_quant_conv = true;
  std::map<std::string, std::string> key;
  std::set<std::string> keys;
  for (const TensorPart& part : autoencoder_diffusers_names(config)) {
    key[part.parameter] = part.key;
    keys.insert(part.key);
  }
  EXPECT_EQ(keys.size(), Autoencoder(config).parameters().size());
  EXPECT_EQ(key["encoder.down.1.block.0.nin_shortcut.bias"],
            "encoder.down_blocks.1.resnets.0.conv_shortcut.bias");
  EXPECT_EQ(key["encoder.down.0.downsample.conv.weight"], "encoder.down_blocks.0.downsamplers.0.conv.weight");
  EXPECT_EQ(key["decoder.up.0.block.1.conv1.weight"], "decoder.up_blocks.2.resnets.1.conv1.weight");
  EXPECT_EQ(key["decoder.up.2.upsample.conv.bias"], "decoder.up_blocks.0.upsamplers.0.conv.bias");
  EXPECT_EQ(key["decoder.mid.attn_1.proj_out.weight"], "decoder.mid_block.attentions.0.to_out.0.weight");
  EXPECT_EQ(key["encoder.mid.attn_1.norm.bias"], "encoder.mid_block.attentions.0.group_norm.bias");
  EXPECT_EQ(key["encoder.mid.block_2.norm1.weight"], "encoder.mid_block.resnets.1.norm1.weight");
  EXPECT_EQ(key["decoder.norm_out.weight"], "decoder.conv_norm_out.weight");
  EXPECT_EQ(key["quant_conv.weight"], "quant_conv.weight");
}

std::string config_error(const std::string& content) {
  const TemporaryFolder folder;
  const auto file = folder / "config.json";
  std::ofstream(file) << content;
  try {
    AutoencoderConfig::from_file(file);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(AutoencoderConfig, ReadsAndRefuses) {
  const auto with = [](const std::string& changes) {
    auto config = nlohmann::json::parse(
        R"({"_class_name": "AutoencoderKL", "block_out_channels": [8, 16], "layers_per_block": 1, "in_channels": 3,
               "out_channels": 3, "latent_channels": 4, "norm_num_groups": 4, "scaling_factor": 0.5,
               "down_block_types": ["DownEncoderBlock2D", "DownEncoderBlock2D"],
               "up_block_types": ["UpDecoderBlock2D", "UpDecoderBlock2D"], "shift_factor": null})");
    config.update(nlohmann::json::parse(changes));
    return config.dump();
  };
  EXPECT_EQ(config_error(with("{}")), "");
  const std::pair<const char*, const char*> cases[] = {
      {R"({"_class_name": "AutoencoderTiny"})", "_class_name is \"AutoencoderTiny\""},
      {R"({"block_out_channels": [8, 18]})", "norm_num_groups is 4"},
      {R"({"down_block_types": ["DownEncoderBlock2D"]})", "as many entries as block_out_channels"},
      {R"({"up_block_types": ["UpDecoderBlock2D", "AttnUpDecoderBlock2D"]})", "up_block_types is"},
      {R"({"latents_mean": [0.1]})", "latents_mean is [0.1]"},
      {R"({"out_channels": 4})", "out_channels is 4"},
      {R"({"act_fn": "relu"})", "act_fn is \"relu\""},
      {R"({"scaling_factor": 0})", "scaling_factor is 0"},
      {R"({"use_quant_conv": 1})", "use_quant_conv is 1"},
  };
  for (const auto& [change, message] : cases) {
    EXPECT_NE(config_error(with(change)).find(message), std::string::npos) << config_error(with(change));
  }
}

TEST(AutoencoderConfig, ReleasedModelIsKnownByItsShapes) {
  for (const bool older : {false, true}) {
    AutoencoderConfig released;
    released.use_quant_conv = released.use_post_quant_conv = older;
    released.mid_block_add_attention = !older;
    TensorListing file{.source = "ae.safetensors", .shapes = {}, .metadata = {}};
    const Autoencoder model(released);
    for (const nn::Parameter* parameter : model.parameters()) file.shapes[parameter->name] = parameter->shape;
    EXPECT_EQ(AutoencoderConfig::from_bfl(file).to_diffusers(), released.to_diffusers());

    file.metadata = {{"scaling_factor", "1.5305"}, {"shift_factor", "0.0609"}, {"norm_num_groups", "16"}};
    const auto other = AutoencoderConfig::from_bfl(file);
    EXPECT_EQ(other.scaling_factor, 1.5305);
    EXPECT_EQ(other.shift_factor, 0.0609);
    EXPECT_EQ(other.norm_num_groups, 16);
    for (const char* value : {"", "x", "1.5y", "inf", "-1"}) {
      file.metadata["scaling_factor"] = value;
      EXPECT_THROW(AutoencoderConfig::from_bfl(file), CheckpointError) << value;
    }
  }
}

}  // namespace
}  // namespace flowshard::models
