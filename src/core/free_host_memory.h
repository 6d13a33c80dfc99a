// How much memory the host can still give.
#pragma once

#include <cstdint>

namespace flowshard {

/// Bytes that can be taken without swapping; the largest number where the system does not say.
int64_t free_host_memory();

}  // namespace flowshard
