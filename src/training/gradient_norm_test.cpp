#include "training/gradient_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "distributed/thread_ranks.h"

namespace flowshard::training {
namespace {

/// Runs `body` on every rank with a state of two groups, "a" [3] and "b.c" [2] with "b.d" [2].
void with_state(int world, int shard_size,
                const std::function<void(fsdp::ShardedState&, const distributed::DeviceMesh&)>& body) {
  distributed::run_thread_ranks(world, std::chrono::seconds(20), [&](distributed::ProcessGroup& ranks) {
    distributed::DeviceMesh mesh(ranks, shard_size);
    nn::Parameter a("a", {3}), c("b.c", {2}), d("b.d", {2});
    nn::ParameterGroup root{"", {&a}}, block{"b", {&c, &d}};
    fsdp::ShardedState state({&root, &block}, {mesh, at::kCPU});
    body(state, mesh);
  });
}

/// Gives every rank its slice of the gradient [3, 0, 4, | 12, 0, 0, 0], with one element replaced.
void set_gradient(fsdp::ShardedState& state, int64_t element = 1, float value = 0) {
  const at::Tensor whole = at::tensor({3.0f, 0.0f, 4.0f, 12.0f, 0.0f, 0.0f, 0.0f});
  whole[element] = value;
  int64_t begin = 0;
  for (const auto& group : state.groups()) {
    const at::Tensor flat = at::constant_pad_nd(whole.narrow(0, begin, group->numel()),
                                                {0, group->padded_numel() - group->numel()});
    group->grad_shard().copy_(flat.narrow(0, group->shard_begin(), group->shard_numel()));
    begin += group->numel();
  }
}

struct Layout {
  int world, shard_size;
};
struct GradientNorm : testing::TestWithParam<Layout> {};

// Each shard once: neither the norm of a shard, nor replicas counted several times.
TEST_P(GradientNorm, IsThatOfTheWholeGradientOnEveryRank) {
  with_state(GetParam().world, GetParam().shard_size,
             [](fsdp::ShardedState& state, const distributed::DeviceMesh& mesh) {
               set_gradient(state);
               EXPECT_NEAR(global_grad_norm(state, mesh), 13, 1e-6);
               EXPECT_EQ(first_non_finite(state, mesh), "");
             });
}

TEST_P(GradientNorm, EveryRankNamesTheFirstBadParameter) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  with_state(GetParam().world, GetParam().shard_size,
             [](fsdp::ShardedState& state, const distributed::DeviceMesh& mesh) {
               const std::pair<int64_t, const char*> cases[] = {
                   {0, "a"}, {2, "a"}, {3, "b.c"}, {5, "b.d"}, {6, "b.d"}};
               for (const auto& [element, name] : cases) {
                 set_gradient(state, element, std::nanf(""));
                 EXPECT_FALSE(std::isfinite(global_grad_norm(state, mesh)));
                 EXPECT_EQ(first_non_finite(state, mesh), name);
                 set_gradient(state, element, kInf);
                 EXPECT_EQ(first_non_finite(state, mesh), name);
               }
             });
}

INSTANTIATE_TEST_SUITE_P(Layouts, GradientNorm,
                         testing::Values(Layout{1, 1}, Layout{2, 2}, Layout{3, 3}, Layout{2, 1},
                                         Layout{4, 2}));

}  // namespace
}  // namespace flowshard::training
