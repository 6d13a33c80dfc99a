// A deadline for calls that have none of their own.
#pragma once

#include <chrono>
#include <functional>

namespace flowshard::distributed {

using Clock = std::chrono::steady_clock;

/// Runs `function` on a thread of its own and waits at most `limit`. Returns false if it has not ended by
/// then: the thread is left behind, so `function` must own everything that it touches. Rethrows what it
/// throws.
bool run_bounded(std::chrono::milliseconds limit, std::function<void()> function);

}  // namespace flowshard::distributed
