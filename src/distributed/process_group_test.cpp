#include "distributed/process_group.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "core/error.h"
#include "distributed/host_staged_group.h"
#include "distributed/thread_ranks.h"

namespace flowshard::distributed {
namespace {

constexpr std::chrono::seconds kTimeout(20);

at::Tensor data_of(int rank, int64_t size, at::ScalarType type = at::kFloat) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(rank));
  return at::randn({size}, generator, at::kFloat).to(type);
}

// One rank, two, and a number that is no power of two.
class ProcessGroupTest : public testing::TestWithParam<int> {
 protected:
  void run(const std::function<void(ProcessGroup&)>& rank_main) {
    run_thread_ranks(GetParam(), kTimeout, rank_main);
  }
};

TEST_P(ProcessGroupTest, AllGatherConcatenatesByRank) {
  run([](ProcessGroup& group) {
    for (const int64_t size : {1, 1001}) {
      std::vector<at::Tensor> parts;
      for (int rank = 0; rank < group.world_size(); ++rank) {
        parts.push_back(data_of(rank, size, at::kBFloat16));
      }
      const at::Tensor output = at::empty({group.world_size() * size}, at::kBFloat16);
      group.all_gather(output, parts[static_cast<size_t>(group.rank())])->wait();
      EXPECT_TRUE(at::equal(output, at::cat(parts)));
    }
  });
}

TEST_P(ProcessGroupTest, AllGatherInPlace) {
  run([](ProcessGroup& group) {
    const at::Tensor output = at::zeros({group.world_size(), 3});
    const at::Tensor mine = output[group.rank()].fill_(group.rank() + 1);
    group.all_gather(output.view(-1), mine)->wait();
    EXPECT_TRUE(
        at::equal(output, at::arange(1, group.world_size() + 1, at::kFloat).view({-1, 1}).expand({-1, 3})));
  });
}

TEST_P(ProcessGroupTest, ReduceScatterIsTheSumInRankOrder) {
  run([](ProcessGroup& group) {
    const int64_t size = 777;
    at::Tensor sum;
    for (int rank = 0; rank < group.world_size(); ++rank) {
      const at::Tensor part = data_of(rank, group.world_size() * size);
      sum = rank == 0 ? part : sum + part;
    }
    const at::Tensor expected = sum.narrow(0, group.rank() * size, size);
    const at::Tensor input = data_of(group.rank(), group.world_size() * size);
    const at::Tensor output = at::empty({size});
    for (int repeat = 0; repeat < 3; ++repeat) {
      group.reduce_scatter_sum(output.zero_(), input)->wait();
      EXPECT_TRUE(at::equal(output, expected));  // to the bit
    }
    const at::Tensor in_place = input.narrow(0, group.rank() * size, size);
    group.reduce_scatter_sum(in_place, input)->wait();
    EXPECT_TRUE(at::equal(in_place, expected));
  });
}

TEST_P(ProcessGroupTest, AllReduceGivesEveryRankTheSameBits) {
  run([](ProcessGroup& group) {
    const at::Tensor tensor = data_of(group.rank(), 1001);
    at::Tensor sum = at::zeros({1001}, at::kDouble);
    for (int rank = 0; rank < group.world_size(); ++rank) {
      sum += data_of(rank, 1001);
    }
    group.all_reduce_sum(tensor)->wait();
    EXPECT_TRUE(at::allclose(tensor.to(at::kDouble), sum, 1e-5, 1e-5));
    const at::Tensor all = at::empty({group.world_size(), 1001});
    group.all_gather(all.view(-1), tensor)->wait();
    EXPECT_TRUE(at::equal(all, tensor.expand_as(all)));
  });
}

TEST_P(ProcessGroupTest, BroadcastFromEveryRoot) {
  run([](ProcessGroup& group) {
    for (int root = 0; root < group.world_size(); ++root) {
      const at::Tensor tensor = at::full({5}, group.rank() == root ? 42 : -1, at::kLong);
      group.broadcast(tensor, root)->wait();
      EXPECT_TRUE(at::equal(tensor, at::full({5}, 42, at::kLong)));
    }
  });
}

TEST_P(ProcessGroupTest, CollectivesInFlightTogetherDoNotMix) {
  run([](ProcessGroup& group) {
    const int world = group.world_size();
    std::vector<at::Tensor> gathered, reduced;
    std::vector<std::unique_ptr<Work>> works;
    for (int i = 0; i < 8; ++i) {
      gathered.push_back(at::empty({world}));
      works.push_back(group.all_gather(gathered.back(), at::full({1}, 10 * i + group.rank(), at::kFloat)));
      reduced.push_back(at::empty({1}));
      works.push_back(group.reduce_scatter_sum(reduced.back(), at::full({world}, i, at::kFloat)));
    }
    for (auto work = works.rbegin(); work != works.rend(); ++work) {  // in any order
      (*work)->wait();
    }
    for (int i = 0; i < 8; ++i) {
      EXPECT_TRUE(at::equal(gathered[static_cast<size_t>(i)], at::arange(world, at::kFloat) + 10 * i));
      EXPECT_EQ(reduced[static_cast<size_t>(i)].item<float>(), static_cast<float>(i * world));
    }
  });
}

TEST_P(ProcessGroupTest, BarrierHoldsUntilTheLastRankComes) {
  std::atomic<int> came = 0;
  run([&](ProcessGroup& group) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20 * group.rank()));
    ++came;
    group.barrier();
    EXPECT_EQ(came, group.world_size());
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ProcessGroupTest, testing::Values(1, 2, 3));

TEST(ProcessGroup, RankThatStaysAwayIsNamedAfterTheTimeout) {
  const auto start = std::chrono::steady_clock::now();
  run_thread_ranks(3, std::chrono::seconds(1), [](ProcessGroup& group) {
    if (group.rank() == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2500));
      return;
    }
    try {
      const at::Tensor input = at::ones({3});
      group.reduce_scatter_sum(at::empty({1}), input)->wait();
      ADD_FAILURE() << "the collective cannot succeed";
    } catch (const CommError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find(fmt::format("rank {} of 3: reduce_scatter of 1 Float", group.rank())),
                std::string::npos);
      EXPECT_NE(text.find("timeout 1 s"), std::string::npos) << text;
      EXPECT_NE(text.find("no sign of rank 2"), std::string::npos) << text;
    }
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(6));
}

TEST(ProcessGroup, RankThatLeavesIsNamedAtOnce) {
  const auto start = std::chrono::steady_clock::now();
  run_thread_ranks(2, kTimeout, [](ProcessGroup& group) {
    if (group.rank() == 0) {
      return;
    }
    try {
      group.all_reduce_sum(at::ones({1000}))->wait();
      ADD_FAILURE() << "the collective cannot succeed";
    } catch (const CommError& error) {
      EXPECT_NE(std::string(error.what()).find("no sign of rank 0"), std::string::npos) << error.what();
    }
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(ProcessGroup, RankThatWaitsForAnotherOneIsNotBlamed) {
  run_thread_ranks(3, kTimeout, [](ProcessGroup& group) {
    const at::Tensor tensor = at::ones({3});
    try {
      if (group.rank() == 0) {
        group.broadcast(tensor, 2)->wait();  // has no connection to rank 1 in use
      } else if (group.rank() == 2) {
        group.reduce_scatter_sum(at::empty({1}), tensor)->wait();
      }
    } catch (const CommError& error) {
      EXPECT_TRUE(std::string(error.what()).ends_with("no sign of rank 1")) << error.what();
    }
  });
}

// A listening socket on a port that the system chose.
struct Listener {
  Listener() : fd(socket(AF_INET, SOCK_STREAM, 0)) {
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(listen(fd, 16), 0);
    getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  }
  int port() const { return ntohs(address.sin_port); }
  int fd;
  sockaddr_in address{};
};

Environment environment_of(int rank, int world_size, int port) {
  return {.rank = rank,
          .world_size = world_size,
          .local_rank = rank,
          .local_world_size = world_size,
          .master_addr = "localhost",
          .master_port = port,
          .job_id = "test"};
}

TEST(ProcessGroup, CreateMeetsOverTheGivenSocket) {
  const Listener listener;
  std::vector<std::future<float>> sums;
  for (int rank = 0; rank < 2; ++rank) {
    sums.push_back(std::async(std::launch::async, [&, rank] {
      Environment environment = environment_of(rank, 2, listener.port());
      environment.master_listen_fd = rank == 0 ? listener.fd : -1;
      const auto group = ProcessGroup::create(environment, at::kCPU, kTimeout);
      const at::Tensor tensor = at::full({1}, rank + 1, at::kFloat);
      group->all_reduce_sum(tensor)->wait();
      group->barrier();
      return tensor.item<float>();
    }));
  }
  EXPECT_EQ(sums[0].get(), 3);
  EXPECT_EQ(sums[1].get(), 3);
}

std::string error_of_create(const Environment& environment) {
  try {
    ProcessGroup::create(environment, at::kCPU, std::chrono::seconds(1));
  } catch (const CommError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ProcessGroup, TakenPortIsNamedAtOnce) {
  const Listener listener;
  const auto start = std::chrono::steady_clock::now();
  const std::string text = error_of_create(environment_of(0, 2, listener.port()));
  EXPECT_NE(text.find(fmt::format("port {} is taken", listener.port())), std::string::npos) << text;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(800));
}

TEST(ProcessGroup, RanksThatDoNotComeAreNamed) {
  int port = 0;
  {
    const Listener listener;
    port = listener.port();
    close(listener.fd);
  }
  const std::string alone = error_of_create(environment_of(0, 4, port));
  EXPECT_NE(alone.find("rank 0 of 4: rendezvous"), std::string::npos) << alone;
  EXPECT_NE(alone.find("ranks 1, 2, 3 did not come"), std::string::npos) << alone;
  const std::string without_leader = error_of_create(environment_of(1, 2, port));
  EXPECT_NE(without_leader.find("rank 0 did not come: nothing listens on localhost"), std::string::npos)
      << without_leader;
}

TEST(ProcessGroup, CreateWithoutOthersOpensNoSocket) {
  EXPECT_EQ(ProcessGroup::create(Environment(), at::kCPU, kTimeout)->world_size(), 1);
}

TEST(HostStagedGroup, IsTheGroupBehindIt) {
  run_thread_ranks(2, kTimeout, [](ProcessGroup& world) {
    const auto staged = make_host_staged_group(world.subgroup({0, 1}, "staged"));
    const auto rank = static_cast<float>(staged->rank());
    const at::Tensor gathered = at::zeros({2, 2}), own = at::full({2}, rank + 1), scattered = at::zeros({2});
    staged->all_gather(gathered, own)->wait();
    EXPECT_TRUE(at::equal(gathered, at::tensor({1.0f, 1.0f, 2.0f, 2.0f}).view({2, 2})));
    staged->reduce_scatter_sum(scattered, gathered)->wait();
    EXPECT_TRUE(at::equal(scattered, at::full({2}, 2 * (rank + 1))));
    staged->all_reduce_sum(own)->wait();
    EXPECT_TRUE(at::equal(own, at::full({2}, 3.0f)));
    const at::Tensor from_one = at::full({3}, rank);
    staged->broadcast(from_one, 1)->wait();
    EXPECT_TRUE(at::equal(from_one, at::ones({3})));
    staged->barrier();
  });
}

}  // namespace
}  // namespace flowshard::distributed
