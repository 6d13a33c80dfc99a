// Where the ranks of a job meet.
#pragma once

#include <string>

#include "core/file_descriptor.h"

namespace flowshard::launcher {

struct Endpoint {
  std::string host;
  int port = 0;
};

/// "gpu-1:29500", "[fe80::1]:29500". Throws ConfigError.
Endpoint parse_endpoint(const std::string& text);

/// A socket that listens on endpoint.port; port 0 becomes a free one. Rank 0 inherits the socket, so nobody
/// can take the port in between, and it outlives restarts. `this_host_only`: on the loopback address. Throws
/// ConfigError that names the port if it is taken.
FileDescriptor listen_at(Endpoint& endpoint, bool this_host_only);

}  // namespace flowshard::launcher
