#include "distributed/thread_ranks.h"

#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "distributed/connect.h"
#include "distributed/local_group.h"

namespace flowshard::distributed {

void run_thread_ranks(int world_size, std::chrono::seconds timeout,
                      const std::function<void(ProcessGroup&)>& rank_main) {
  if (world_size == 1) {
    rank_main(*make_local_group());
    return;
  }
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::future<void>> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      const auto group = connect({.store = store,
                                  .rank = rank,
                                  .world_size = world_size,
                                  .device = at::kCPU,
                                  .timeout = timeout,
                                  .local_address = "127.0.0.1"});
      rank_main(*group);
    }));
  }
  for (std::future<void>& rank : ranks) {
    rank.wait();
  }
  for (std::future<void>& rank : ranks) {
    rank.get();
  }
}

}  // namespace flowshard::distributed
