// What the process groups over a c10d backend share: broadcast, all-reduce, barrier, deadlines, and errors
// that name rank, operation and timeout.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "distributed/bounded.h"
#include "distributed/connect.h"

namespace flowshard::distributed {

class BackendGroup : public ProcessGroup {
 public:
  BackendGroup(GroupOptions options, c10::intrusive_ptr<c10d::Backend> backend);
  ~BackendGroup() override;

  int rank() const override { return options_.group_rank(); }
  int world_size() const override { return options_.group_size(); }
  std::unique_ptr<Work> all_reduce_sum(const at::Tensor& tensor) override;
  std::unique_ptr<Work> broadcast(const at::Tensor& tensor, int root) override;
  void barrier() override;
  std::unique_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks, const std::string& name) override;

  using Pending = c10::intrusive_ptr<c10d::Work>;

  /// Runs `call`, a step of `operation` that began at `start`, and turns what it throws into a CommError.
  void guarded(const std::string& operation, Clock::time_point start, const std::function<void()>& call);
  /// Makes the result of a c10d operation visible; throws what c10d throws.
  virtual void finish(c10d::Work& work) = 0;

 protected:
  /// Called once, after the first failure: makes every other rank that waits for this one notice at once. May
  /// throw.
  virtual void leave() = 0;
  std::unique_ptr<Work> start(const std::string& operation, const std::function<Pending()>& call);
  const GroupOptions& options() const { return options_; }
  const c10::intrusive_ptr<c10d::Backend>& backend() const { return backend_; }

 private:
  GroupOptions options_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  bool failure_reported_ = false;
};

/// "all_gather of 1350000 float"
std::string describe(const char* operation, const at::Tensor& tensor);

}  // namespace flowshard::distributed
