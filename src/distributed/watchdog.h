// Calls a function when a wait is overdue by the monotonic clock.
//
// [Note: clock of the day] Gloo, as LibTorch's packages build it, waits by the clock of the day: when that is
// set back during a wait, the wait lasts longer by as much. A watchdog ends it from outside.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <set>
#include <thread>

#include "distributed/bounded.h"

namespace flowshard::distributed {

class Watchdog {
 public:
  /// `on_overdue` is called once at most, on a thread of the watchdog's own; what it throws is ignored.
  explicit Watchdog(std::function<void()> on_overdue);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Watched as long as it lives. On any thread.
  class Wait {
   public:
    Wait(Watchdog& watchdog, Clock::time_point deadline);
    ~Wait();
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    Watchdog& watchdog_;
    std::multiset<Clock::time_point>::iterator place_;
  };

 private:
  void run();

  std::function<void()> on_overdue_;
  std::mutex mutex_;
  std::condition_variable ending_changed_;
  std::multiset<Clock::time_point> deadlines_;  // of the waits in progress
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace flowshard::distributed
