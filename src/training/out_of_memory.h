// Memory that runs out, of a GPU or of the host, as an error that says what to change.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "training/memory_advice.h"

namespace flowshard::training {

/// Called in a handler. If the exception in flight is a failed allocation (LibTorch's on a GPU or on the
/// host, std::bad_alloc), throws a ConfigError in its place: `where` ("step 12 (backward pass)"), what was
/// asked for, what is free, and the settings that would help. Otherwise returns.
void rethrow_out_of_memory(const std::string& where,
                           const std::function<std::vector<MemoryAdvice>()>& settings);

}  // namespace flowshard::training
