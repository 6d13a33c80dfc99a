// Collectives over NCCL. A collective runs on the GPU after the call has returned, so a failure shows later:
// NCCL's watchdog thread ends the kernels of a collective that is past its deadline, and the next call here
// throws.
#include <c10/cuda/CUDAFunctions.h>

#include <cstdlib>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "core/error.h"
#include "distributed/backend_group.h"

namespace flowshard::distributed {

namespace {

constexpr std::chrono::milliseconds kAbortLimit(1000);

class NcclGroup : public BackendGroup {
 public:
  using BackendGroup::BackendGroup;

  std::unique_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input) override {
    return start(describe("all_gather", input), [&] {
      at::Tensor out = output, in = input;
      return backend()->_allgather_base(out, in);
    });
  }

  std::unique_ptr<Work> reduce_scatter_sum(const at::Tensor& output, const at::Tensor& input) override {
    return start(describe("reduce_scatter", output), [&] {
      at::Tensor out = output, in = input;
      return backend()->_reduce_scatter_base(out, in);
    });
  }

  void finish(c10d::Work& work) override {
    work.wait();
    switch (backend()->getError()) {
      case c10d::ErrorType::SUCCESS:
        return;
      case c10d::ErrorType::TIMEOUT:
        throw CommError("an operation on the GPU passed its deadline");
      default:
        throw CommError("NCCL lost a peer");
    }
  }

 private:
  void leave() override {
    run_bounded(kAbortLimit, [nccl = backend()] { nccl->abort(); });
  }
};

}  // namespace

std::unique_ptr<ProcessGroup> connect_nccl(const GroupOptions& options) {
  // The watchdog is to end failed operations but not the process, which names the error itself; torchrun asks
  // for the opposite. No dump files, and no traffic with a store that is gone.
  setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2", 1);
  setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", 0);
  setenv("TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN", "0", 0);

  c10::cuda::set_device(options.device.index());
  auto nccl = c10d::ProcessGroupNCCL::Options::create();
  nccl->timeout = options.timeout;
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(options.group_store(), options.group_rank(),
                                                             options.group_size(), std::move(nccl));
  backend->setBoundDeviceId(options.device);
  backend->eagerConnectSingleDevice(options.device);
  return std::make_unique<NcclGroup>(options, std::move(backend));
}

}  // namespace flowshard::distributed
