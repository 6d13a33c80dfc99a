// Collectives among the ranks of a job: c10d with Gloo on CPUs and NCCL on GPUs. Every wait has a deadline; a
// rank that is gone, frozen or late becomes a CommError on every other rank. Call from one thread; every rank
// makes the same calls in the same order.
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "distributed/environment.h"

namespace flowshard::distributed {

/// A collective that may still run. wait() makes its result visible: on the CPU it blocks, on a GPU the
/// current stream waits. Throws CommError. Destroying it unwaited is allowed only while an exception unwinds.
class Work {
 public:
  virtual ~Work() = default;
  virtual void wait() = 0;
};

class ProcessGroup {
 public:
  /// Meets the other ranks. With world_size 1 no socket is opened and every collective is a local copy.
  /// Throws CommError after `timeout`, naming the ranks that did not come.
  static std::unique_ptr<ProcessGroup> create(const Environment& environment, at::Device device,
                                              std::chrono::seconds timeout);
  virtual ~ProcessGroup() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  /// output [world * n] = concatenation of every rank's input [n], by rank. output may be the buffer that
  /// input is a slice of (in place).
  virtual std::unique_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input) = 0;

  /// output [n] = this rank's slice of the sum over ranks of input [world * n]. Sums in a fixed order:
  /// bitwise repeatable.
  virtual std::unique_ptr<Work> reduce_scatter_sum(const at::Tensor& output, const at::Tensor& input) = 0;

  /// In place; every rank gets the same bits.
  virtual std::unique_ptr<Work> all_reduce_sum(const at::Tensor& tensor) = 0;

  virtual std::unique_ptr<Work> broadcast(const at::Tensor& tensor, int root) = 0;
  virtual void barrier() = 0;

  /// A group of its own for some ranks of this one, in this order; called by exactly these. `name` is the
  /// same on all of them, and on no other group of the job. Throws CommError.
  virtual std::unique_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks, const std::string& name) = 0;
};

}  // namespace flowshard::distributed
