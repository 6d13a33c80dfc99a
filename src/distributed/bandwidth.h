// How fast the ranks of a job exchange data, and a GPU and its host. S is the bytes of the whole tensor: what
// all_gather writes, reduce_scatter reads, all_reduce or a copy holds; t the time of the slowest rank, n the
// ranks. Algorithm bandwidth is S / t; bus bandwidth what each rank must at least send and receive over t:
//   all_gather, reduce_scatter: S / t (n - 1) / n        all_reduce: S / t 2 (n - 1) / n        copy: S / t
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <vector>

#include "distributed/process_group.h"

namespace flowshard::distributed {

struct Bandwidth {
  std::string operation;                                  // "all_gather", ..., "host_to_device"
  int64_t bytes = 0;                                      // S
  double seconds = 0, seconds_low = 0, seconds_high = 0;  // median, fastest and slowest of the repeats
  double bus_factor = 0;

  double algorithm_bytes_per_second() const { return static_cast<double>(bytes) / seconds; }
  double bus_bytes_per_second() const { return bus_factor * algorithm_bytes_per_second(); }
};

struct BandwidthOptions {
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kBFloat16;
  std::vector<int64_t> sizes;  // of S in bytes; rounded down to whole elements for each rank
  int repeats = 10;            // at least 1, after two that do not count
  std::function<void(const Bandwidth&)> on_result = [](const Bandwidth&) {};  // as soon as it is known
};

/// all_gather, reduce_scatter and all_reduce at every size; the same numbers on every rank, all of which call
/// it. Throws CommError: within the group's timeout, or if a result is wrong.
std::vector<Bandwidth> measure_collectives(ProcessGroup& ranks, const BandwidthOptions& options);

/// Copies between this rank's GPU and pinned memory of its host, in both directions, at every size, while all
/// ranks do the same; as measure_collectives().
std::vector<Bandwidth> measure_copies(ProcessGroup& ranks, const BandwidthOptions& options);

}  // namespace flowshard::distributed
