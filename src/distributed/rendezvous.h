// How the ranks of a job find each other: a key-value store that all reach, and proof that every rank of this
// very attempt is there.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "distributed/environment.h"

namespace flowshard::distributed {

struct Meeting {
  c10::intrusive_ptr<c10d::Store> store;  // keys are private to this attempt
  std::string local_address;              // of this host, on the route to rank 0
};

/// Connects to the store and waits until every rank is there. Throws CommError after `timeout`, naming the
/// ranks that did not come. May leave a blocked thread behind when the store does not answer.
///
/// [Note: admission] A store kept by torchrun outlives the ranks, so it holds keys of earlier attempts, and
/// no environment variable tells attempts apart on all ranks (TORCHELASTIC_RESTART_COUNT is counted per
/// host). So each rank draws a random ticket. Rank 0 publishes its own as `leader`; the others put theirs
/// under the leader's; rank 0 then publishes the list of all tickets. A rank that finds its ticket in the
/// list knows that rank 0 is of its own attempt; a list without it is stale, and the rank goes on looking for
/// a new leader.
Meeting meet(const Environment& environment, std::chrono::milliseconds timeout);

/// The admission protocol alone, over any store. Returns the prefix of this attempt's keys.
std::string admit(c10d::Store& store, int rank, int world_size,
                  std::chrono::steady_clock::time_point deadline);

}  // namespace flowshard::distributed
