#include "distributed/watchdog.h"

namespace flowshard::distributed {

namespace {

constexpr std::chrono::milliseconds kLook(500);
constexpr std::chrono::milliseconds kGrace(1000);  // a wait that keeps its deadline tells more itself

}  // namespace

Watchdog::Watchdog(std::function<void()> on_overdue)
    : on_overdue_(std::move(on_overdue)), thread_([this] { run(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  ending_changed_.notify_all();
  thread_.join();
}

void Watchdog::run() {
  std::unique_lock lock(mutex_);
  while (!ending_changed_.wait_for(lock, kLook, [this] { return ending_; })) {
    if (deadlines_.empty() || Clock::now() < *deadlines_.begin() + kGrace) continue;
    lock.unlock();
    try {
      on_overdue_();
    } catch (const std::exception&) {
      // Whoever waits gets the error.
    }
    return;
  }
}

Watchdog::Wait::Wait(Watchdog& watchdog, Clock::time_point deadline) : watchdog_(watchdog) {
  const std::lock_guard lock(watchdog_.mutex_);
  place_ = watchdog_.deadlines_.insert(deadline);
}

Watchdog::Wait::~Wait() {
  const std::lock_guard lock(watchdog_.mutex_);
  watchdog_.deadlines_.erase(place_);
}

}  // namespace flowshard::distributed
