#include "distributed/rendezvous.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <future>
#include <set>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "core/error.h"
#include "distributed/address.h"

namespace flowshard::distributed {
namespace {

using std::chrono::milliseconds;

// What each rank of `ranks` learns: its prefix, or "error: ...".
std::vector<std::string> admit_ranks(c10d::Store& store, const std::vector<int>& ranks, int world_size,
                                     milliseconds timeout) {
  std::vector<std::future<std::string>> futures;
  for (const int rank : ranks) {
    futures.push_back(std::async(std::launch::async, [&, rank] {
      try {
        return admit(store, rank, world_size, Clock::now() + timeout);
      } catch (const CommError& error) {
        return std::string("error: ") + error.what();
      }
    }));
  }
  std::vector<std::string> results;
  for (auto& future : futures) {
    results.push_back(future.get());
  }
  return results;
}

TEST(Rendezvous, AllRanksGetTheSamePrefixAndTheNextAttemptAnother) {
  c10d::HashStore store;
  std::set<std::string> prefixes;
  for (int attempt = 0; attempt < 3; ++attempt) {  // one store, as kept by torchrun over restarts
    const auto results = admit_ranks(store, {0, 1, 2}, 3, milliseconds(5000));
    EXPECT_EQ(results[0], results[1]);
    EXPECT_EQ(results[0], results[2]);
    prefixes.insert(results[0]);
  }
  EXPECT_EQ(prefixes.size(), 3u);
}

TEST(Rendezvous, RankThatComesFirstIsNotFooledByKeysOfAnEarlierAttempt) {
  c10d::HashStore store;
  const auto first = admit_ranks(store, {0, 1}, 2, milliseconds(5000));
  auto early =
      std::async(std::launch::async, [&] { return admit_ranks(store, {1}, 2, milliseconds(5000))[0]; });
  std::this_thread::sleep_for(milliseconds(100));
  const auto leader = admit_ranks(store, {0}, 2, milliseconds(5000));
  EXPECT_EQ(early.get(), leader[0]);
  EXPECT_NE(leader[0], first[0]);
}

TEST(Rendezvous, EveryRankNamesTheAbsentOnes) {
  c10d::HashStore store;
  for (const std::string& result : admit_ranks(store, {0, 2}, 5, milliseconds(300))) {
    EXPECT_EQ(result, "error: ranks 1, 3, 4 did not come");
  }
  EXPECT_EQ(admit_ranks(store, {0, 1}, 3, milliseconds(300))[1], "error: rank 2 did not come");
}

TEST(Rendezvous, AbsentRankZeroIsNamed) {
  c10d::HashStore store;
  EXPECT_EQ(admit_ranks(store, {1}, 2, milliseconds(100))[0], "error: rank 0 did not come");
  admit_ranks(store, {0, 1}, 2, milliseconds(5000));
  const std::string stale = admit_ranks(store, {1}, 2, milliseconds(100))[0];
  EXPECT_NE(stale.find("rank 0 did not come"), std::string::npos) << stale;
}

TEST(Rendezvous, TwoProcessesOfOneRankAreNotBothAdmitted) {
  c10d::HashStore store;
  const auto results = admit_ranks(store, {0, 1, 1}, 3, milliseconds(300));
  const std::string both = results[1] + results[2];
  EXPECT_NE(both.find("another process came as rank 1"), std::string::npos) << both;
}

TEST(Rendezvous, UnresolvableNameIsNamed) {
  try {
    wait_for_listener("no-such-host.invalid", 29500, Clock::now() + milliseconds(100));
    FAIL();
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find("no-such-host.invalid does not resolve"), std::string::npos)
        << error.what();
  }
}

TEST(Rendezvous, LoopbackIsNotOfferedToOtherHosts) {
  EXPECT_EQ(reachable_address("127.0.1.1", false), "127.0.1.1");
  EXPECT_EQ(reachable_address("10.1.2.3", true), "10.1.2.3");
}

}  // namespace
}  // namespace flowshard::distributed
