// How long a rank stands in its collectives.
#pragma once

#include <memory>

#include "distributed/process_group.h"

namespace flowshard::distributed {

/// The same as `group`; adds to `seconds` the time that its calls and their waits take. On a GPU that is the
/// time to queue them.
std::unique_ptr<ProcessGroup> make_timed_group(std::unique_ptr<ProcessGroup> group,
                                               std::shared_ptr<double> seconds);

}  // namespace flowshard::distributed
