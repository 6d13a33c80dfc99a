// A queue of limited length between threads. Every wait has a deadline, and close() ends every wait.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <utility>

#include "core/error.h"

namespace flowshard {

enum class QueueResult { kDone, kTimeout, kClosed };

/// Any number of threads may push, pop and close at once.
template <typename T>
class BoundedQueue {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {
    check(capacity > 0, "a queue holds at least one value");
  }

  /// Adds `value`, waiting for room. Unless the result is kDone, `value` is left as it was.
  QueueResult push(T&& value, TimePoint deadline) {
    std::unique_lock lock(mutex_);
    const auto ready = [&] { return closed_ || values_.size() < capacity_; };
    if (!room_.wait_until(lock, deadline, ready)) return QueueResult::kTimeout;
    if (closed_) return QueueResult::kClosed;
    values_.push_back(std::move(value));
    lock.unlock();
    filled_.notify_one();
    return QueueResult::kDone;
  }

  /// Moves the oldest value to `value`, waiting for one. Values pushed before close() are still delivered.
  QueueResult pop(T& value, TimePoint deadline) {
    std::unique_lock lock(mutex_);
    const auto ready = [&] { return closed_ || !values_.empty(); };
    if (!filled_.wait_until(lock, deadline, ready)) return QueueResult::kTimeout;
    if (values_.empty()) return QueueResult::kClosed;
    value = std::move(values_.front());
    values_.pop_front();
    lock.unlock();
    room_.notify_one();
    return QueueResult::kDone;
  }

  /// No value is accepted any more; every waiting thread goes on.
  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    room_.notify_all();
    filled_.notify_all();
  }

 private:
  const size_t capacity_;
  std::mutex mutex_;
  std::condition_variable room_;
  std::condition_variable filled_;
  std::deque<T> values_;
  bool closed_ = false;
};

}  // namespace flowshard
