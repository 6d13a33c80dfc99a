// Ranks as threads of one process, for tests of what runs above a process group.
#pragma once

#include <functional>

#include "distributed/process_group.h"

namespace flowshard::distributed {

/// Calls `rank_main` on `world_size` threads, each with its rank's group over Gloo (one rank: the local
/// group). Rethrows the first exception, once all have ended.
void run_thread_ranks(int world_size, std::chrono::seconds timeout,
                      const std::function<void(ProcessGroup&)>& rank_main);

}  // namespace flowshard::distributed
