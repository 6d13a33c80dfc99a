// Starts the ranks of a job on this host, watches them and restarts them together. It knows nothing of what
// they compute: they are processes with torchrun's environment variables. Call from a process with one
// thread: signals that arrive while launch() runs are taken by it.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace flowshard::launcher {

struct LaunchOptions {
  std::string program;               // what to execute
  std::vector<std::string> command;  // its name, then its arguments
  int processes_per_node = 1;
  int nodes = 1;
  int node_rank = 0;
  std::string endpoint;  // HOST:PORT where rank 0 listens; empty or port 0: a free port of this host
  std::string job_id;    // equal on all nodes; empty on one node: drawn
  int max_restarts = 0;
  std::chrono::milliseconds grace{15000};  // from SIGTERM to SIGKILL
};

struct LaunchResult {
  int exit_code = 0;     // of the rank that failed first; 128 + n if it died by signal n
  std::string message;   // which rank, how, and its last line; empty if all succeeded
  bool stopped = false;  // as a signal to the launcher asked
};

/// Returns when no rank is left. Throws ConfigError if the endpoint cannot be used or the program cannot
/// start.
LaunchResult launch(const LaunchOptions& options);

}  // namespace flowshard::launcher
