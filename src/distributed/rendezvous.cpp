#include "distributed/rendezvous.h"

#include <random>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "core/error.h"
#include "distributed/address.h"

namespace flowshard::distributed {

namespace {

using std::chrono::milliseconds;
constexpr milliseconds kPollDelay(20);
constexpr milliseconds kVerdictLinger(300);  // rank 0 keeps the store up so that others read who is missing
constexpr milliseconds kFrozenStoreGrace(1000);
constexpr const char* kAbsent = "-";

std::string draw_ticket() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

std::string ticket_key(const std::string& leader, int rank) {
  return fmt::format("ticket/{}/{}", leader, rank);
}
std::string list_key(const std::string& leader) { return "list/" + leader; }

std::string did_not_come(const std::vector<int>& ranks) {
  return ranks.empty()
             ? "rank 0 did not answer"
             : fmt::format("rank{} {} did not come", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

std::vector<int> absent_ranks(const std::vector<std::string>& tickets) {
  std::vector<int> absent;
  for (size_t rank = 0; rank < tickets.size(); ++rank) {
    if (tickets[rank] == kAbsent) {
      absent.push_back(static_cast<int>(rank));
    }
  }
  return absent;
}

// What is known of the others under `leader`; empty leader: no rank 0 was seen.
std::vector<std::string> tickets_under(c10d::Store& store, const std::string& leader, int world_size) {
  std::vector<std::string> tickets(static_cast<size_t>(world_size), kAbsent);
  if (leader.empty()) {
    return tickets;
  }
  tickets[0] = leader;
  for (int rank = 1; rank < world_size; ++rank) {
    if (store.check({ticket_key(leader, rank)})) {
      tickets[static_cast<size_t>(rank)] = store.get_to_str(ticket_key(leader, rank));
    }
  }
  return tickets;
}

std::string admit_as_leader(c10d::Store& store, int world_size, Clock::time_point deadline) {
  const std::string leader = draw_ticket();
  store.set("leader", leader);
  for (;;) {
    const std::vector<std::string> tickets = tickets_under(store, leader, world_size);
    const std::vector<int> absent = absent_ranks(tickets);
    if (absent.empty() || Clock::now() > deadline) {
      store.set(list_key(leader), fmt::format("{}", fmt::join(tickets, " ")));
      if (absent.empty()) {
        return leader;
      }
      std::this_thread::sleep_for(kVerdictLinger);
      throw CommError("{}", did_not_come(absent));
    }
    std::this_thread::sleep_for(kPollDelay);
  }
}

std::string admit_as_follower(c10d::Store& store, int rank, int world_size, Clock::time_point deadline) {
  const std::string ticket = draw_ticket();
  std::string leader;
  bool stale = false;
  for (;; std::this_thread::sleep_for(kPollDelay)) {
    if (const std::string seen = store.check({"leader"}) ? store.get_to_str("leader") : ""; seen != leader) {
      leader = seen;
      stale = false;
      store.set(ticket_key(leader, rank), ticket);
    }
    if (!leader.empty() && store.check({list_key(leader)})) {
      const std::vector<std::string> list = words_of(store.get_to_str(list_key(leader)));
      stale = static_cast<int>(list.size()) != world_size || list[static_cast<size_t>(rank)] != ticket;
      if (const std::vector<int> absent = absent_ranks(list); !stale && !absent.empty()) {
        throw CommError("{}", did_not_come(absent));
      }
      if (!stale) {
        return leader;
      }
    }
    if (!leader.empty() && store.get_to_str(ticket_key(leader, rank)) != ticket) {
      throw CommError("another process came as rank {}: two processes or two jobs use this address", rank);
    }
    if (Clock::now() > deadline) {
      std::vector<std::string> tickets = tickets_under(store, stale ? "" : leader, world_size);
      tickets[static_cast<size_t>(rank)] = ticket;
      throw CommError("{}{}", did_not_come(absent_ranks(tickets)),
                      stale ? " (another job or an earlier attempt met here)" : "");
    }
  }
}

c10::intrusive_ptr<c10d::Store> connect(const Environment& environment, Clock::time_point deadline,
                                        std::string& local_address) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(environment.master_port);
  options.isServer = environment.rank == 0 && !environment.use_agent_store;
  options.waitWorkers = false;
  if (options.isServer && environment.master_listen_fd >= 0) {
    options.masterListenFd = environment.master_listen_fd;
  }
  const auto reach_store = [&] {
    try {
      local_address = wait_for_listener(environment.master_addr, environment.master_port, deadline);
    } catch (const CommError& error) {
      throw CommError("rank 0 did not come: {}", error.what());
    }
  };
  if (!options.isServer) {
    reach_store();
  }
  const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
  options.timeout = std::max(left, milliseconds(1000));
  auto store = c10::make_intrusive<c10d::TCPStore>(environment.master_addr, options);
  if (options.isServer) {
    reach_store();
  }
  return c10::make_intrusive<c10d::PrefixStore>("flowshard/" + environment.job_id, store);
}

}  // namespace

std::string admit(c10d::Store& store, int rank, int world_size, Clock::time_point deadline) {
  return rank == 0 ? admit_as_leader(store, world_size, deadline)
                   : admit_as_follower(store, rank, world_size, deadline);
}

Meeting meet(const Environment& environment, milliseconds timeout) {
  const std::string where = fmt::format("rank {} of {}: rendezvous at {}:{} (timeout {} s)", environment.rank,
                                        environment.world_size, environment.master_addr,
                                        environment.master_port, timeout.count() / 1000);
  const char* owner = environment.use_agent_store ? "the launcher" : "rank 0";
  const auto meeting = std::make_shared<Meeting>();
  const auto deadline = Clock::now() + timeout;
  try {
    const bool ended =
        run_bounded(timeout + kVerdictLinger + kFrozenStoreGrace, [environment, deadline, meeting] {
          const auto store = connect(environment, deadline, meeting->local_address);
          const std::string attempt = admit(*store, environment.rank, environment.world_size, deadline);
          meeting->store = c10::make_intrusive<c10d::PrefixStore>(attempt, store);
        });
    if (!ended) {
      throw CommError("the store of {} does not answer", owner);
    }
  } catch (const CommError& error) {
    throw CommError("{}: {}", where, error.what());
  } catch (const std::exception& error) {
    const std::string reason(first_line(error.what()));
    throw CommError("{}: {}", where,
                    reason.find("EADDRINUSE") != std::string::npos
                        ? fmt::format("port {} is taken on this host", environment.master_port)
                        : fmt::format("the store of {} is lost: {}", owner, reason));
  }
  return std::move(*meeting);
}

}  // namespace flowshard::distributed
