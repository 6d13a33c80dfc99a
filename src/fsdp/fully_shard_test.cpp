#include "fsdp/fully_shard.h"

#include <gtest/gtest.h>

#include <cmath>

#include "distributed/thread_ranks.h"
#include "nn/linear.h"

namespace flowshard::fsdp {
namespace {

/// A root layer, then residual blocks of two linears: parameter counts that no world size divides.
class TestModel {
 public:
  explicit TestModel(int num_blocks) : root_layer_(root_, "in", 3, 5) {
    for (int i = 0; i < num_blocks; ++i)
      blocks_.push_back(std::make_unique<Block>("blocks." + std::to_string(i)));
  }
  at::Tensor forward(const at::Tensor& x, nn::BlockRunner& runner) {
    at::Tensor y = root_layer_.forward(x);
    for (const auto& block : blocks_) {
      const auto function = [&](const nn::Tensors& inputs) {
        return nn::Tensors{inputs[0] + block->second.forward(at::tanh(block->first.forward(inputs[0])))};
      };
      y = runner.run(block->group, function, {y})[0];
    }
    return y;
  }
  std::vector<nn::ParameterGroup*> groups() {
    std::vector<nn::ParameterGroup*> result = {&root_};
    for (const auto& block : blocks_) result.push_back(&block->group);
    return result;
  }

 private:
  struct Block {
    explicit Block(const std::string& name)
        : group{name, {}}, first(group, name + ".first", 5, 7), second(group, name + ".second", 7, 5) {}
    nn::ParameterGroup group;
    nn::Linear first, second;
  };
  nn::ParameterGroup root_;
  nn::Linear root_layer_;
  std::vector<std::unique_ptr<Block>> blocks_;
};

void fill(const nn::ParameterGroup& group) {
  for (nn::Parameter* parameter : group.parameters) {
    for (int64_t i = 0; i < parameter->numel(); ++i) {
      parameter->value.view(-1)[i] = 0.3f * std::sin(static_cast<float>(i + parameter->name.size() * 17));
    }
  }
}

void make_trainable(TestModel& model) {
  for (const nn::ParameterGroup* group : model.groups()) {
    for (nn::Parameter* parameter : group->parameters) parameter->trainable = true;
  }
}

at::Tensor sample(int64_t index) {
  return at::sin(at::arange(3, at::kFloat) + static_cast<double>(index)).view({1, 3});
}

constexpr int kPasses = 2;  // a step

/// The gradients of every group after one step over `num_samples` samples, without any sharding.
std::vector<at::Tensor> reference_gradients(int num_blocks, int num_samples) {
  TestModel model(num_blocks);
  make_trainable(model);
  std::vector<at::Tensor> result;
  for (const nn::ParameterGroup* group : model.groups()) {
    nn::materialize(group->parameters, at::kFloat);
    fill(*group);
  }
  nn::DirectRunner runner;
  for (int64_t i = 0; i < num_samples; ++i) model.forward(sample(i), runner).square().sum().backward();
  for (const nn::ParameterGroup* group : model.groups()) {
    std::vector<at::Tensor> flat;
    for (const nn::Parameter* parameter : group->parameters) flat.push_back(parameter->grad.flatten());
    result.push_back(at::cat(flat));
  }
  return result;
}

struct Case {
  int world;
  int shard_size;
  bool reshard_after_forward = true;
  bool no_sync = false;
  int num_blocks = 3;
};

void with_ranks(const Case& one, const std::function<void(const ShardContext&)>& body) {
  distributed::run_thread_ranks(one.world, std::chrono::seconds(30), [&](distributed::ProcessGroup& world) {
    distributed::DeviceMesh mesh(world, one.shard_size);
    body({.mesh = mesh,
          .device = at::kCPU,
          .reshard_after_forward = one.reshard_after_forward,
          .no_sync = one.no_sync});
  });
}

struct FullyShard : testing::TestWithParam<Case> {};

TEST_P(FullyShard, GradientsOfAllRanksTogetherEqualOneProcess) {
  const Case one = GetParam();
  const auto expected = reference_gradients(one.num_blocks, kPasses * one.world);
  with_ranks(one, [&](const ShardContext& context) {
    const distributed::ProcessGroup& world = context.mesh.world();
    TestModel model(one.num_blocks);
    make_trainable(model);
    ShardedState state(model.groups(), context);
    state.initialize(fill);
    for (int step = 0; step < 2; ++step) {  // the second step: buffers with old contents
      state.begin_step();
      for (int pass = 0; pass < kPasses; ++pass) {
        state.begin_forward(pass == kPasses - 1);
        model.forward(sample(world.rank() + pass * world.world_size()), state).square().sum().backward();
        state.end_backward();
      }
      for (size_t g = 0; g < expected.size(); ++g) {
        const ParamGroup& group = *state.groups()[g];
        const at::Tensor padded = at::constant_pad_nd(expected[g], {0, group.padded_numel() - group.numel()});
        const at::Tensor own = padded.narrow(0, group.shard_begin(), group.shard_numel());
        EXPECT_TRUE(at::allclose(group.grad_shard(), own, 1e-5, 1e-6))
            << "group " << g << " rank " << world.rank();
      }
    }
    for (const nn::ParameterGroup* group : model.groups()) {
      for (const nn::Parameter* parameter : group->parameters) EXPECT_FALSE(parameter->value.defined());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Full, FullyShard,
                         testing::Values(Case{1, 1}, Case{2, 2}, Case{3, 3}, Case{5, 5}, Case{7, 7},
                                         Case{.world = 4, .shard_size = 4, .num_blocks = 1},
                                         Case{.world = 2, .shard_size = 2, .num_blocks = 0}));
INSTANTIATE_TEST_SUITE_P(GradOp, FullyShard,
                         testing::Values(Case{.world = 2, .shard_size = 2, .reshard_after_forward = false},
                                         Case{.world = 3, .shard_size = 3, .reshard_after_forward = false}));
INSTANTIATE_TEST_SUITE_P(None, FullyShard, testing::Values(Case{2, 1}, Case{3, 1}));
INSTANTIATE_TEST_SUITE_P(Hybrid, FullyShard,
                         testing::Values(Case{4, 2}, Case{6, 3}, Case{6, 2},
                                         Case{.world = 4, .shard_size = 2, .reshard_after_forward = false}));
INSTANTIATE_TEST_SUITE_P(
    NoSync, FullyShard,
    testing::Values(Case{.world = 2, .shard_size = 2, .no_sync = true},
                    Case{.world = 4, .shard_size = 2, .no_sync = true},
                    Case{.world = 3, .shard_size = 3, .reshard_after_forward = false, .no_sync = true},
                    Case{.world = 2, .shard_size = 1, .no_sync = true}));

TEST(FullyShard, MasterChangesAreSeenByTheNextForward) {
  with_ranks({2, 2}, [&](const ShardContext& context) {
    TestModel model(2);
    ShardedState state(model.groups(), context);
    state.initialize(fill);
    at::NoGradGuard no_grad;
    for (const auto& group : state.groups()) group->master_shard().zero_();
    state.begin_forward();
    EXPECT_EQ(model.forward(sample(0), state).abs().max().item<float>(), 0);
    state.end_forward();
  });
}

TEST(FullyShard, GathersInTheComputePrecision) {
  with_ranks({2, 2}, [&](ShardContext context) {
    TestModel model(2);
    make_trainable(model);
    context.precision.param_dtype = at::kBFloat16;
    ShardedState state(model.groups(), context);
    state.initialize(fill);
    state.begin_step();
    state.begin_forward();
    const at::Tensor y = model.forward(sample(context.mesh.world().rank()).to(at::kBFloat16), state);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    y.square().sum().backward();
    state.end_backward();
    EXPECT_EQ(state.groups()[1]->grad_shard().scalar_type(), at::kFloat);
    EXPECT_GT(state.groups()[1]->grad_shard().abs().max().item<float>(), 0);
  });
}

}  // namespace
}  // namespace flowshard::fsdp
