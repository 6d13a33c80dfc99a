#include <gtest/gtest.h>

#include <future>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "core/error.h"
#include "distributed/connect.h"

namespace flowshard::distributed {
namespace {

constexpr std::chrono::seconds kTimeout(60);

// One rank a visible GPU, as threads.
void on_every_gpu(const std::function<void(ProcessGroup&, at::TensorOptions)>& rank_main) {
  const int world_size = static_cast<int>(at::detail::getCUDAHooks().deviceCount());
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::future<void>> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(rank));
      const auto group = connect({.store = store,
                                  .rank = rank,
                                  .world_size = world_size,
                                  .device = device,
                                  .timeout = kTimeout,
                                  .local_address = ""});
      rank_main(*group, at::TensorOptions(device).dtype(at::kBFloat16));
      group->barrier();
    }));
  }
  for (auto& rank : ranks) {
    rank.get();
  }
}

TEST(NcclGpu, CollectivesOfAllVisibleGpus) {
  on_every_gpu([](ProcessGroup& group, at::TensorOptions options) {
    const int world = group.world_size(), rank = group.rank();
    const int64_t size = 1001;
    const at::Tensor all = at::empty({world, size}, options);
    group.all_gather(all.view(-1), all[rank].fill_(rank + 1))->wait();
    for (int other = 0; other < world; ++other) {
      EXPECT_TRUE(at::equal(all[other], at::full_like(all[other], other + 1)));
    }
    const at::Tensor sum = at::empty({size}, options);
    group.reduce_scatter_sum(sum, all.view(-1))->wait();
    EXPECT_TRUE(at::equal(sum, at::full_like(sum, world * (rank + 1))));
    group.all_reduce_sum(sum.fill_(rank + 1))->wait();
    EXPECT_TRUE(at::equal(sum, at::full_like(sum, world * (world + 1) / 2)));
    group.broadcast(sum.fill_(rank), world - 1)->wait();
    EXPECT_TRUE(at::equal(sum, at::full_like(sum, world - 1)));
  });
}

TEST(NcclGpu, ReduceScatterIsRepeatableToTheBit) {
  on_every_gpu([](ProcessGroup& group, at::TensorOptions options) {
    at::manual_seed(1);
    const at::Tensor input = at::randn({group.world_size() * int64_t{1 << 20}}, options.dtype(at::kFloat));
    const at::Tensor first = at::empty({1 << 20}, input.options()), again = at::empty_like(first);
    group.reduce_scatter_sum(first, input)->wait();
    for (int repeat = 0; repeat < 5; ++repeat) {
      group.reduce_scatter_sum(again, input)->wait();
      EXPECT_TRUE(at::equal(first, again));
    }
  });
}

}  // namespace
}  // namespace flowshard::distributed
