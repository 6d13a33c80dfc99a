// Collectives on GPU tensors through the host's memory and Gloo: slow, but any number of ranks may share a
// GPU, and no fast network is needed.
#pragma once

#include "distributed/process_group.h"

namespace flowshard::distributed {

/// `group` takes CPU tensors; the result takes those of any device. Each call waits until the current stream
/// has written its input.
std::unique_ptr<ProcessGroup> make_host_staged_group(std::unique_ptr<ProcessGroup> group);

}  // namespace flowshard::distributed
