#include "distributed/bounded.h"

#include <future>
#include <thread>

namespace flowshard::distributed {

bool run_bounded(std::chrono::milliseconds limit, std::function<void()> function) {
  // The task lives in its thread alone, so that whatever `function` owns is destroyed there too.
  std::packaged_task<void()> task(std::move(function));
  std::future<void> done = task.get_future();
  std::thread([task = std::move(task)]() mutable { task(); }).detach();
  if (done.wait_for(limit) != std::future_status::ready) {
    return false;
  }
  done.get();
  return true;
}

}  // namespace flowshard::distributed
