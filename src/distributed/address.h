// Finding the other hosts of a job.
#pragma once

#include <string>
#include <vector>

#include "distributed/bounded.h"

namespace flowshard::distributed {

/// Waits until a process listens on host:port, and returns the address of this host on the route to it. A
/// name that does not resolve yet is tried again. Throws CommError at the deadline.
std::string wait_for_listener(const std::string& host, int port, Clock::time_point deadline);

/// `address`, unless it is one of the loopback network and the job spans several hosts (a hosts file may map
/// this host's own name to 127.0.1.1): then the first other address of this host.
std::string reachable_address(const std::string& address, bool several_hosts);

/// The network interfaces that GLOO_SOCKET_IFNAME names, often none. Throws ConfigError for one that does not
/// exist.
std::vector<std::string> chosen_interfaces();

}  // namespace flowshard::distributed
