#include "distributed/backend_group.h"

#include <regex>

#include "core/error.h"
#include "distributed/failure_report.h"
#include "distributed/local_group.h"

namespace flowshard::distributed {

namespace {

constexpr std::chrono::milliseconds kReportLimit(1000);
constexpr std::chrono::milliseconds kTeardownLimit(2000);

class BackendWork : public Work {
 public:
  BackendWork(BackendGroup& group, std::string operation, Clock::time_point start,
              BackendGroup::Pending pending)
      : group_(group), operation_(std::move(operation)), start_(start), pending_(std::move(pending)) {}
  void wait() override {
    group_.guarded(operation_, start_, [this] { group_.finish(*pending_); });
  }

 private:
  BackendGroup& group_;
  std::string operation_;
  Clock::time_point start_;
  BackendGroup::Pending pending_;
};

// Without the source positions that Gloo puts in front.
std::string plain_reason(const std::exception& error) {
  static const std::regex kPosition(R"(^(\[[^\]]*\.(cc|cpp|h|hpp):\d+\]\s*)+)");
  return std::regex_replace(std::string(first_line(error.what())), kPosition, "");
}

}  // namespace

std::string describe(const char* operation, const at::Tensor& tensor) {
  return fmt::format("{} of {} {}", operation, tensor.numel(), c10::toString(tensor.scalar_type()));
}

BackendGroup::BackendGroup(GroupOptions options, c10::intrusive_ptr<c10d::Backend> backend)
    : options_(std::move(options)), backend_(std::move(backend)) {}

BackendGroup::~BackendGroup() {
  // The backend's destructor waits for operations in flight. When a peer is gone they may last until their
  // timeout: leave the backend to its thread then. The store goes last, since the backend uses it.
  try {
    run_bounded(kTeardownLimit, [store = std::move(options_.store), backend = std::move(backend_),
                                 failed = failure_reported_]() mutable {
      failed ? backend->abort() : backend->shutdown();
      backend.reset();
      store.reset();
    });
  } catch (const std::exception&) {
    // A destructor does not throw, and nobody waits for these operations any more.
  }
}

std::unique_ptr<Work> BackendGroup::all_reduce_sum(const at::Tensor& tensor) {
  return start(describe("all_reduce", tensor), [&] {
    std::vector<at::Tensor> tensors{tensor};
    return backend_->allreduce(tensors);
  });
}

std::unique_ptr<Work> BackendGroup::broadcast(const at::Tensor& tensor, int root) {
  return start(describe("broadcast", tensor), [&] {
    c10d::BroadcastOptions broadcast;
    broadcast.rootRank = root;
    std::vector<at::Tensor> tensors{tensor};
    return backend_->broadcast(tensors, broadcast);
  });
}

void BackendGroup::barrier() {
  start("barrier", [&] {
    c10d::BarrierOptions barrier;
    barrier.device = options_.device;
    return backend_->barrier(barrier);
  })->wait();
}

std::unique_ptr<ProcessGroup> BackendGroup::subgroup(const std::vector<int>& ranks, const std::string& name) {
  if (ranks.size() == 1) return make_local_group();
  GroupOptions options = options_;
  options.name = options_.name + "/" + name;
  options.members.clear();
  for (const int member : ranks) options.members.push_back(options_.rank_in_job(member));
  return connect(options);
}

std::unique_ptr<Work> BackendGroup::start(const std::string& operation,
                                          const std::function<Pending()>& call) {
  const auto now = Clock::now();
  Pending pending;
  guarded(operation, now, [&] { pending = call(); });
  return std::make_unique<BackendWork>(*this, operation, now, std::move(pending));
}

void BackendGroup::guarded(const std::string& operation, Clock::time_point start,
                           const std::function<void()>& call) {
  std::string reason;
  try {
    call();
    return;
  } catch (const std::exception& error) {
    reason = plain_reason(error);
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  std::string blame;
  if (!std::exchange(failure_reported_, true)) {
    try {
      leave();
    } catch (const std::exception&) {
      // The first error is the one to tell.
    }
    blame = "; " + report_failure(options_, kReportLimit);
  }
  throw CommError("rank {} of {}: {} failed after {:.1f} s (timeout {} s): {}{}", options_.rank,
                  options_.world_size, operation, seconds, options_.timeout.count() / 1000, reason, blame);
}

}  // namespace flowshard::distributed
