#include "distributed/failure_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <mutex>
#include <thread>
#include <vector>

#include "distributed/bounded.h"
#include "distributed/quiet.h"

namespace flowshard::distributed {

namespace {

constexpr std::chrono::milliseconds kPollDelay(20);

std::string failure_key(int rank) { return fmt::format("failed/{}", rank); }

struct Silent {
  std::mutex mutex;
  std::vector<int> ranks;
  bool store_answered = false;
};

void watch(c10d::Store& store, int rank, int world_size, Clock::time_point deadline, Silent& silent) {
  store.set(failure_key(rank), "");
  for (;; std::this_thread::sleep_for(kPollDelay)) {
    std::vector<int> ranks;
    for (int other = 0; other < world_size; ++other) {
      if (other != rank && !store.check({failure_key(other)})) {
        ranks.push_back(other);
      }
    }
    const std::lock_guard lock(silent.mutex);
    silent.ranks = ranks;
    silent.store_answered = true;
    if (ranks.empty() || Clock::now() > deadline) {
      return;
    }
  }
}

}  // namespace

std::string report_failure(const GroupOptions& group, std::chrono::milliseconds limit) {
  QuietLog().keep();  // the store may be gone, and the job is over
  const auto silent = std::make_shared<Silent>();
  const auto deadline = Clock::now() + limit;
  try {
    run_bounded(limit, [store = group.store, rank = group.rank, world_size = group.world_size, deadline,
                        silent] { watch(*store, rank, world_size, deadline, *silent); });
  } catch (const std::exception&) {
    // The store is gone: its host went down after or with the failure. What was seen until then is reported.
  }
  const std::lock_guard lock(silent->mutex);
  if (!silent->store_answered) {
    return fmt::format("no sign of {}, which holds the store", group.store_owner);
  }
  return silent->ranks.empty() ? "every other rank reports the failure too"
                               : fmt::format("no sign of rank{} {}", silent->ranks.size() == 1 ? "" : "s",
                                             fmt::join(silent->ranks, ", "));
}

}  // namespace flowshard::distributed
