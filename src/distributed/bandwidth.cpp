#include "distributed/bandwidth.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>

#include "core/error.h"

namespace flowshard::distributed {
namespace {

constexpr int kWarmUps = 2;

void synchronize(at::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

/// Element-wise the largest over ranks. Also where a failure on the GPU shows, whose operations return before
/// they run.
std::vector<double> slowest_rank(ProcessGroup& ranks, const std::vector<double>& seconds, at::Device device) {
  const auto count = static_cast<int64_t>(seconds.size());
  const at::Tensor own = at::tensor(seconds, at::kDouble).to(device);
  const at::Tensor all = at::empty({ranks.world_size() * count}, own.options());
  ranks.all_gather(all, own)->wait();
  const at::Tensor largest = all.view({ranks.world_size(), count}).amax(0).cpu();
  const auto* values = largest.const_data_ptr<double>();
  return {values, values + count};
}

/// Repeats `operation`, which all ranks enter together.
Bandwidth measure(ProcessGroup& ranks, const BandwidthOptions& options, Bandwidth result,
                  const std::function<void()>& operation) {
  std::vector<double> seconds;
  for (int i = 0; i < kWarmUps + options.repeats; ++i) {
    ranks.barrier();
    synchronize(options.device);
    const auto begin = std::chrono::steady_clock::now();
    operation();
    synchronize(options.device);
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    if (i >= kWarmUps) seconds.push_back(passed.count());
  }
  seconds = slowest_rank(ranks, seconds, options.device);
  std::sort(seconds.begin(), seconds.end());
  result.seconds = seconds[seconds.size() / 2];
  result.seconds_low = seconds.front();
  result.seconds_high = seconds.back();
  options.on_result(result);
  return result;
}

/// Elements of the whole tensor at `bytes`, a multiple of the ranks.
int64_t whole_elements(const ProcessGroup& ranks, const BandwidthOptions& options, int64_t bytes) {
  const auto each = static_cast<int64_t>(at::elementSize(options.dtype)) * ranks.world_size();
  return std::max<int64_t>(bytes / each, 1) * ranks.world_size();
}

void expect_all(const at::Tensor& result, double value, const std::string& operation) {
  if (!(result == value).all().item<bool>()) throw CommError("{} delivered wrong numbers", operation);
}

}  // namespace

std::vector<Bandwidth> measure_collectives(ProcessGroup& ranks, const BandwidthOptions& options) {
  const at::NoGradGuard no_grad;
  const int size = ranks.world_size();
  const double once = static_cast<double>(size - 1) / size;
  const at::TensorOptions layout = at::TensorOptions(options.device).dtype(options.dtype);
  std::vector<Bandwidth> results;
  for (const int64_t wanted : options.sizes) {
    const int64_t count = whole_elements(ranks, options, wanted);
    const at::Tensor whole = at::ones({count}, layout), part = at::ones({count / size}, layout);
    const auto bytes = static_cast<int64_t>(whole.nbytes());

    results.push_back(measure(ranks, options, {.operation = "all_gather", .bytes = bytes, .bus_factor = once},
                              [&] { ranks.all_gather(whole, part)->wait(); }));
    expect_all(whole, 1, "all_gather");
    if (ranks.rank() != 0) whole.zero_();  // sums of ones are not exact in bf16 from 257 ranks on
    results.push_back(measure(ranks, options,
                              {.operation = "reduce_scatter", .bytes = bytes, .bus_factor = once},
                              [&] { ranks.reduce_scatter_sum(part, whole)->wait(); }));
    expect_all(part, 1, "reduce_scatter");
    whole.zero_();  // it is summed again and again
    results.push_back(measure(ranks, options,
                              {.operation = "all_reduce", .bytes = bytes, .bus_factor = 2 * once},
                              [&] { ranks.all_reduce_sum(whole)->wait(); }));
    expect_all(whole, 0, "all_reduce");
  }
  return results;
}

std::vector<Bandwidth> measure_copies(ProcessGroup& ranks, const BandwidthOptions& options) {
  const at::NoGradGuard no_grad;
  std::vector<Bandwidth> results;
  for (const int64_t wanted : options.sizes) {
    const int64_t count = whole_elements(ranks, options, wanted);
    const at::Tensor host =
        at::ones({count}, at::TensorOptions(at::kCPU).dtype(options.dtype).pinned_memory(true));
    const at::Tensor device = at::zeros({count}, at::TensorOptions(options.device).dtype(options.dtype));
    const auto bytes = static_cast<int64_t>(host.nbytes());
    results.push_back(measure(ranks, options,
                              {.operation = "host_to_device", .bytes = bytes, .bus_factor = 1},
                              [&] { device.copy_(host, /*non_blocking=*/true); }));
    expect_all(device, 1, "host_to_device");
    host.zero_();
    results.push_back(measure(ranks, options,
                              {.operation = "device_to_host", .bytes = bytes, .bus_factor = 1},
                              [&] { host.copy_(device, /*non_blocking=*/true); }));
    expect_all(host, 1, "device_to_host");
  }
  return results;
}

}  // namespace flowshard::distributed
