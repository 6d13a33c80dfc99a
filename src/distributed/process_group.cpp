#include "distributed/process_group.h"

#include <csignal>

#include "distributed/address.h"
#include "distributed/connect.h"
#include "distributed/local_group.h"
#include "distributed/quiet.h"
#include "distributed/rendezvous.h"

namespace flowshard::distributed {

std::unique_ptr<ProcessGroup> ProcessGroup::create(const Environment& environment, at::Device device,
                                                   std::chrono::seconds timeout) {
  if (environment.world_size == 1) {
    return make_local_group();
  }
  std::signal(SIGPIPE, SIG_IGN);  // writing to a peer that is gone is an error of the write, not a death
  chosen_interfaces();            // a wrong one is found before the other ranks are kept waiting
  const QuietLog quiet;
  const Meeting meeting = meet(environment, timeout);
  const bool several_hosts = environment.local_world_size < environment.world_size;
  return connect({.store = meeting.store,
                  .rank = environment.rank,
                  .world_size = environment.world_size,
                  .device = device,
                  .timeout = timeout,
                  .local_address = reachable_address(meeting.local_address, several_hosts),
                  .store_owner = environment.use_agent_store ? "the launcher" : "rank 0"});
}

}  // namespace flowshard::distributed
