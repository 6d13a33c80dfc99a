#include <gtest/gtest.h>

#include "distributed/local_group.h"
#include "fsdp/fully_shard.h"
#include "fsdp/staged_update.h"
#include "nn/linear.h"

namespace flowshard::fsdp {
namespace {

constexpr int64_t kWidth = 1024;
const at::Device kGpu(at::kCUDA, 0);

/// A root layer and residual blocks large enough that copies and kernels really run side by side.
struct Model {
  struct Block {
    explicit Block(const std::string& name) : group{name, {}}, layer(group, name, kWidth, kWidth) {}
    nn::ParameterGroup group;
    nn::Linear layer;
  };

  explicit Model(int num_blocks) : root_layer(root, "in", kWidth, kWidth) {
    for (int i = 0; i < num_blocks; ++i)
      blocks.push_back(std::make_unique<Block>("blocks." + std::to_string(i)));
    for (nn::ParameterGroup* group : groups()) {
      for (nn::Parameter* parameter : group->parameters) parameter->trainable = true;
    }
  }
  at::Tensor forward(const at::Tensor& x, nn::BlockRunner& runner) {
    at::Tensor y = root_layer.forward(x);
    for (const auto& block : blocks) {
      const auto function = [&](const nn::Tensors& in) {
        return nn::Tensors{in[0] + at::tanh(block->layer.forward(in[0]))};
      };
      y = runner.run(block->group, function, {y})[0];
    }
    return y;
  }
  std::vector<nn::ParameterGroup*> groups() {
    std::vector<nn::ParameterGroup*> all = {&root};
    for (const auto& block : blocks) all.push_back(&block->group);
    return all;
  }

  nn::ParameterGroup root;
  nn::Linear root_layer;
  std::vector<std::unique_ptr<Block>> blocks;
};

struct Variant {
  bool reshard_after_forward = true, no_sync = false;
  HostMemory* host_memory = nullptr;
};

/// Masters and gradients after three steps of plain gradient descent in bf16, two passes each.
at::Tensor trained(const Variant& variant) {
  const auto world = distributed::make_local_group();
  distributed::DeviceMesh mesh(*world, 1);
  Model model(6);
  ShardedState state(model.groups(), {.mesh = mesh,
                                      .device = kGpu,
                                      .precision = {.param_dtype = at::kBFloat16},
                                      .reshard_after_forward = variant.reshard_after_forward,
                                      .no_sync = variant.no_sync,
                                      .host_memory = variant.host_memory});
  at::manual_seed(1);
  state.initialize([](const nn::ParameterGroup& group) {
    const at::NoGradGuard no_grad;
    for (nn::Parameter* parameter : group.parameters)
      parameter->value.copy_(at::randn(parameter->shape, at::kFloat) * 0.03);
  });
  const at::Tensor x = at::randn({64, kWidth}, at::kFloat).to(kGpu, at::kBFloat16);
  StagedUpdate update(kGpu);
  for (int step = 0; step < 3; ++step) {
    state.begin_step();
    for (int pass = 0; pass < 2; ++pass) {
      state.begin_forward(pass == 1);
      model.forward(x, state).to(at::kFloat).square().mean().backward();
      state.end_backward();
    }
    std::vector<StagedUpdate::Slice> masters;
    for (const auto& group : state.groups()) masters.push_back({group->master_shard()});
    update.run(masters, [&](size_t i, const StagedUpdate::Slice& master) {
      EXPECT_TRUE(master[0].is_cuda());
      master[0].sub_(state.groups()[i]->grad_shard(), 0.1);
    });
  }
  std::vector<at::Tensor> all;
  for (const auto& group : state.groups()) {
    all.push_back(group->grad_shard().cpu());
    all.push_back(group->master_shard().cpu());
  }
  return at::cat(all);
}

TEST(FullyShardGpu, WhereThingsLieAndWhenTheyAreGatheredChangesNoBit) {
  const at::Tensor expected = trained({});
  EXPECT_TRUE(at::isfinite(expected).all().item<bool>());
  EXPECT_TRUE(at::equal(trained({.reshard_after_forward = false}), expected));
  EXPECT_TRUE(at::equal(trained({.no_sync = true}), expected));
  HostMemory host(kGpu, int64_t{1} << 30);
  EXPECT_TRUE(at::equal(trained({.host_memory = &host}), expected));
  EXPECT_GT(host.used_bytes(), 7 * kWidth * kWidth * 4);
  HostMemory little(kGpu, 3 * (kWidth + 1) * kWidth * 4);  // the rest stays on the GPU
  EXPECT_TRUE(at::equal(trained({.reshard_after_forward = false, .no_sync = true, .host_memory = &little}),
                        expected));
}

TEST(HostMemoryGpu, IsPinnedZeroAndWithinItsBudget) {
  HostMemory host(kGpu, 4000);
  const at::Tensor first = host.zeros(500, at::kFloat), second = host.zeros(600, at::kFloat),
                   third = host.zeros(400, at::kFloat);
  EXPECT_TRUE(first.is_cpu() && first.is_pinned());
  EXPECT_TRUE(second.is_cuda());
  EXPECT_TRUE(third.is_cpu());
  EXPECT_EQ(host.used_bytes(), 3600);
  for (const at::Tensor& tensor : {first, second, third}) EXPECT_EQ(tensor.abs().sum().item<float>(), 0);
}

}  // namespace
}  // namespace flowshard::fsdp
