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

void watch(const GroupOptions& group, Clock::time_point deadline, Silent& silent) {
  group.store->set(failure_key(group.rank), "");
  for (;; std::this_thread::sleep_for(kPollDelay)) {
    std::vector<int> ranks;
    for (int member = 0; member < group.group_size(); ++member) {
      const int other = group.rank_in_job(member);
      if (other != group.rank && !group.store->check({failure_key(other)})) {
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
    run_bounded(limit, [group, deadline, silent] { watch(group, deadline, *silent); });
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
