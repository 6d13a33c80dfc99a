#include "distributed/connect.h"

#include <algorithm>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "core/error.h"
#include "distributed/bounded.h"

namespace flowshard::distributed {

namespace {

constexpr std::chrono::milliseconds kGrace(1000);

// c10d notes every operation with its stack in a table that it fills without a lock: ranks that are threads
// of one process would destroy it.
bool without_flight_recorder() { return ::setenv("TORCH_FR_BUFFER_SIZE", "0", 0) == 0; }

}  // namespace

int GroupOptions::group_rank() const {
  if (members.empty()) return rank;
  const auto found = std::ranges::find(members, rank);
  check(found != members.end(), "a rank connects the groups that it belongs to");
  return static_cast<int>(found - members.begin());
}

c10::intrusive_ptr<c10d::Store> GroupOptions::group_store() const {
  return c10::make_intrusive<c10d::PrefixStore>(name, store);
}

std::unique_ptr<ProcessGroup> connect(const GroupOptions& options) {
  [[maybe_unused]] static const bool quiet = without_flight_recorder();
  const auto group = std::make_shared<std::unique_ptr<ProcessGroup>>();
  std::string reason = "some ranks do not answer";
  try {
    const bool ended = run_bounded(options.timeout + kGrace, [options, group] {
      *group = options.device.is_cuda() ? connect_nccl(options) : connect_gloo(options);
    });
    if (ended) {
      return std::move(*group);
    }
  } catch (const ConfigError&) {
    throw;
  } catch (const std::exception& error) {
    reason = first_line(error.what());
    if (reason.find("invalid usage") != std::string::npos) {
      reason = "NCCL refuses the ranks: two of them may use one GPU (NCCL_DEBUG=WARN says more)";
    }
  }
  throw CommError("rank {} of {}: connecting to the other ranks failed (timeout {} s): {}", options.rank,
                  options.world_size, options.timeout.count() / 1000, reason);
}

}  // namespace flowshard::distributed
