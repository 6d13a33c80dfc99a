#include "distributed/timed_group.h"

#include <chrono>

namespace flowshard::distributed {
namespace {

using Clock = std::chrono::steady_clock;

/// Adds the time that it lives.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() { seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  double& seconds_;
  Clock::time_point start_ = Clock::now();
};

class TimedWork : public Work {
 public:
  TimedWork(std::unique_ptr<Work> work, std::shared_ptr<double> seconds)
      : work_(std::move(work)), seconds_(std::move(seconds)) {}
  void wait() override {
    const Stopwatch stopwatch(*seconds_);
    work_->wait();
  }

 private:
  std::unique_ptr<Work> work_;
  std::shared_ptr<double> seconds_;
};

class TimedGroup : public ProcessGroup {
 public:
  TimedGroup(std::unique_ptr<ProcessGroup> group, std::shared_ptr<double> seconds)
      : group_(std::move(group)), seconds_(std::move(seconds)) {}

  int rank() const override { return group_->rank(); }
  int world_size() const override { return group_->world_size(); }
  std::unique_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input) override {
    return timed([&] { return group_->all_gather(output, input); });
  }
  std::unique_ptr<Work> reduce_scatter_sum(const at::Tensor& output, const at::Tensor& input) override {
    return timed([&] { return group_->reduce_scatter_sum(output, input); });
  }
  std::unique_ptr<Work> all_reduce_sum(const at::Tensor& tensor) override {
    return timed([&] { return group_->all_reduce_sum(tensor); });
  }
  std::unique_ptr<Work> broadcast(const at::Tensor& tensor, int root) override {
    return timed([&] { return group_->broadcast(tensor, root); });
  }
  void barrier() override {
    const Stopwatch stopwatch(*seconds_);
    group_->barrier();
  }
  std::unique_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks, const std::string& name) override {
    return make_timed_group(group_->subgroup(ranks, name), seconds_);
  }

 private:
  template <typename Call>
  std::unique_ptr<Work> timed(const Call& call) {
    const Stopwatch stopwatch(*seconds_);
    return std::make_unique<TimedWork>(call(), seconds_);
  }

  std::unique_ptr<ProcessGroup> group_;
  std::shared_ptr<double> seconds_;
};

}  // namespace

std::unique_ptr<ProcessGroup> make_timed_group(std::unique_ptr<ProcessGroup> group,
                                               std::shared_ptr<double> seconds) {
  return std::make_unique<TimedGroup>(std::move(group), std::move(seconds));
}

}  // namespace flowshard::distributed
