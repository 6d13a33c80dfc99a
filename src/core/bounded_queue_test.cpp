#include "core/bounded_queue.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <thread>
#include <vector>

namespace flowshard {
namespace {

using std::chrono::steady_clock;

steady_clock::time_point in_milliseconds(int milliseconds) {
  return steady_clock::now() + std::chrono::milliseconds(milliseconds);
}

constexpr int kLong = 10'000;

TEST(BoundedQueue, ValuesComeOutInOrder) {
  BoundedQueue<int> queue(3);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(queue.push(int{i}, in_milliseconds(kLong)), QueueResult::kDone);
  for (int i = 0; i < 3; ++i) {
    int value = -1;
    EXPECT_EQ(queue.pop(value, in_milliseconds(kLong)), QueueResult::kDone);
    EXPECT_EQ(value, i);
  }
}

TEST(BoundedQueue, AFullOrEmptyQueueMeetsItsDeadline) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  std::unique_ptr<int> value;
  EXPECT_EQ(queue.pop(value, in_milliseconds(10)), QueueResult::kTimeout);
  EXPECT_EQ(queue.push(std::make_unique<int>(1), in_milliseconds(kLong)), QueueResult::kDone);
  auto second = std::make_unique<int>(2);
  EXPECT_EQ(queue.push(std::move(second), in_milliseconds(10)), QueueResult::kTimeout);
  ASSERT_NE(second, nullptr);  // not lost
  EXPECT_EQ(*second, 2);
}

TEST(BoundedQueue, CloseWakesWaitingThreadsAndKeepsWhatWasPushed) {
  BoundedQueue<int> queue(1);
  auto popped = std::async(std::launch::async, [&] {
    std::vector<int> values;
    int value = 0;
    while (queue.pop(value, in_milliseconds(kLong)) == QueueResult::kDone) values.push_back(value);
    return values;
  });
  EXPECT_EQ(queue.push(7, in_milliseconds(kLong)), QueueResult::kDone);
  EXPECT_EQ(queue.push(8, in_milliseconds(kLong)), QueueResult::kDone);
  queue.close();
  EXPECT_EQ(popped.get(), (std::vector<int>{7, 8}));
  EXPECT_EQ(queue.push(9, in_milliseconds(kLong)), QueueResult::kClosed);
}

TEST(BoundedQueue, CloseWakesAPusherThatWaitsForRoom) {
  BoundedQueue<int> queue(1);
  EXPECT_EQ(queue.push(1, in_milliseconds(kLong)), QueueResult::kDone);
  auto waiting = std::async(std::launch::async, [&] { return queue.push(2, in_milliseconds(kLong)); });
  queue.close();
  EXPECT_EQ(waiting.get(), QueueResult::kClosed);
}

TEST(BoundedQueue, ManyThreadsLoseAndRepeatNothing) {
  constexpr int kThreads = 4;
  constexpr int kValues = 2000;
  BoundedQueue<int> queue(5);
  std::vector<std::future<int64_t>> sums;
  for (int t = 0; t < kThreads; ++t) {
    sums.push_back(std::async(std::launch::async, [&] {
      int64_t sum = 0;
      int value = 0;
      while (queue.pop(value, in_milliseconds(kLong)) == QueueResult::kDone) sum += value;
      return sum;
    }));
  }
  std::vector<std::thread> pushers;
  for (int t = 0; t < kThreads; ++t) {
    pushers.emplace_back([&queue, t] {
      for (int i = 0; i < kValues; ++i) queue.push(t * kValues + i, in_milliseconds(kLong));
    });
  }
  for (std::thread& pusher : pushers) pusher.join();
  queue.close();
  int64_t sum = 0;
  for (auto& part : sums) sum += part.get();
  constexpr int64_t kAll = int64_t{kThreads} * kValues;
  EXPECT_EQ(sum, kAll * (kAll - 1) / 2);
}

}  // namespace
}  // namespace flowshard
