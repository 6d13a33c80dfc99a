// After a failed collective: which ranks are to blame. A rank that is alive notices the same failure and says
// so in the store; one that was killed or is frozen does not.
#pragma once

#include <chrono>
#include <string>

#include "distributed/connect.h"
namespace flowshard::distributed {

/// Tells the others that this rank has seen a failure, waits at most `limit` for the others to say the same,
/// and returns words about those that did not, such as "no sign of rank 2". Never throws, never blocks
/// longer.
std::string report_failure(const GroupOptions& group, std::chrono::milliseconds limit);

}  // namespace flowshard::distributed
