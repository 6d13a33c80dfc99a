#include "distributed/host_staged_group.h"

namespace flowshard::distributed {
namespace {

class StagedWork : public Work {
 public:
  StagedWork(std::unique_ptr<Work> work, at::Tensor host, at::Tensor output)
      : work_(std::move(work)), host_(std::move(host)), output_(std::move(output)) {}
  void wait() override {
    const at::NoGradGuard no_grad;
    work_->wait();
    output_.view_as(host_).copy_(host_);
  }

 private:
  std::unique_ptr<Work> work_;
  at::Tensor host_, output_;
};

class HostStagedGroup : public ProcessGroup {
 public:
  explicit HostStagedGroup(std::unique_ptr<ProcessGroup> group) : group_(std::move(group)) {}

  int rank() const override { return group_->rank(); }
  int world_size() const override { return group_->world_size(); }

  std::unique_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input) override {
    const at::Tensor host = at::empty({output.numel()}, output.options().device(at::kCPU));
    return staged(group_->all_gather(host, input.view(-1).cpu()), host, output);
  }
  std::unique_ptr<Work> reduce_scatter_sum(const at::Tensor& output, const at::Tensor& input) override {
    const at::Tensor host = at::empty({output.numel()}, output.options().device(at::kCPU));
    const at::Tensor host_input = input.view(-1).cpu();
    return staged(group_->reduce_scatter_sum(host, host_input), host, output);
  }
  std::unique_ptr<Work> all_reduce_sum(const at::Tensor& tensor) override {
    const at::Tensor host = tensor.view(-1).cpu();
    return staged(group_->all_reduce_sum(host), host, tensor);
  }
  std::unique_ptr<Work> broadcast(const at::Tensor& tensor, int root) override {
    const at::Tensor host = tensor.view(-1).cpu();
    return staged(group_->broadcast(host, root), host, tensor);
  }
  void barrier() override { group_->barrier(); }
  std::unique_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks, const std::string& name) override {
    return make_host_staged_group(group_->subgroup(ranks, name));
  }

 private:
  static std::unique_ptr<Work> staged(std::unique_ptr<Work> work, const at::Tensor& host,
                                      const at::Tensor& output) {
    if (output.is_cpu() && output.data_ptr() == host.data_ptr()) return work;
    return std::make_unique<StagedWork>(std::move(work), host, output);
  }

  std::unique_ptr<ProcessGroup> group_;
};

}  // namespace

std::unique_ptr<ProcessGroup> make_host_staged_group(std::unique_ptr<ProcessGroup> group) {
  return std::make_unique<HostStagedGroup>(std::move(group));
}

}  // namespace flowshard::distributed
