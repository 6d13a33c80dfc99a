// flowshard bench collectives: the bandwidths that docs/scaling.md and `flowshard plan` reckon with, measured
// on the user's own machines.
#include "bench.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "core/error.h"
#include "distributed/bandwidth.h"
#include "distributed/environment.h"
#include "distributed/process_group.h"
#include "kernels/gpu.h"
#include "number_between.h"
#include "subcommands.h"

namespace flowshard::apps {
namespace {

using distributed::Bandwidth;

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kBlockParameters = 339'831'296;  // a double block of FLUX.1, its largest

struct CollectivesOptions {
  std::string device;  // empty: cuda if there is one
  std::string dtype = "bf16";
  double max_mib = 0;  // 0: no limit
  int repeats = 10;
  int64_t timeout_seconds = 60;
  bool json = false;
};

at::Device choose_device(const CollectivesOptions& options, const distributed::Environment& environment) {
  if (options.device == "cpu" || (options.device.empty() && !at::hasCUDA())) return at::kCPU;
  kernels::require_gpu("--device cuda");
  const int gpu = distributed::gpu_of(environment, static_cast<int>(at::getNumGPUs()));
  const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(gpu));
  kernels::require_kernels("--device cuda", device);
  return device;
}

/// 1, 4, ... 256 MiB and a whole block, none above the limit; the limit itself if it is below the block.
std::vector<int64_t> sizes_of(const CollectivesOptions& options, at::ScalarType dtype) {
  const int64_t block = kBlockParameters * static_cast<int64_t>(at::elementSize(dtype));
  const auto limit = static_cast<int64_t>(options.max_mib * static_cast<double>(kMiB));
  const int64_t largest = limit > 0 ? std::min(limit, block) : block;
  std::vector<int64_t> sizes;
  for (int64_t size = kMiB; size < largest; size *= 4) sizes.push_back(size);
  sizes.push_back(largest);
  return sizes;
}

void print_header(const distributed::Environment& environment, at::Device device, const std::string& dtype) {
  fmt::print("{} ranks, {}, {}; S is the whole tensor, t the slowest rank's median time\n",
             environment.world_size, device.is_cpu() ? "Gloo on the CPU" : "NCCL on GPUs", dtype);
  fmt::print(
      "algorithm bandwidth S / t; bus bandwidth: times (n - 1) / n for all_gather and reduce_scatter,\n"
      "2 (n - 1) / n for all_reduce, 1 for copies\n\n");
  fmt::print("{:<15} {:>10} {:>12} {:>25} {:>15} {:>10}\n", "operation", "MiB", "median ms",
             "fastest - slowest ms", "algorithm GB/s", "bus GB/s");
}

void print_row(const Bandwidth& row) {
  fmt::print("{:<15} {:>10.1f} {:>12.3f} {:>25} {:>15.2f} {:>10.2f}\n", row.operation,
             static_cast<double>(row.bytes) / kMiB, row.seconds * 1e3,
             fmt::format("{:.3f} - {:.3f}", row.seconds_low * 1e3, row.seconds_high * 1e3),
             row.algorithm_bytes_per_second() / 1e9, row.bus_bytes_per_second() / 1e9);
  std::fflush(stdout);  // a size may take a while
}

void print_json(const std::vector<Bandwidth>& rows, const CollectivesOptions& options, int num_ranks,
                bool on_gpu) {
  nlohmann::ordered_json result{{"num_ranks", num_ranks},
                                {"device", on_gpu ? "cuda" : "cpu"},
                                {"dtype", options.dtype},
                                {"repeats", options.repeats},
                                {"results", nlohmann::ordered_json::array()}};
  for (const Bandwidth& row : rows) {
    result["results"].push_back({{"operation", row.operation},
                                 {"bytes", row.bytes},
                                 {"seconds", row.seconds},
                                 {"seconds_low", row.seconds_low},
                                 {"seconds_high", row.seconds_high},
                                 {"algorithm_bytes_per_second", row.algorithm_bytes_per_second()},
                                 {"bus_bytes_per_second", row.bus_bytes_per_second()}});
  }
  fmt::print("{}\n", result.dump(2));
}

void run(const CollectivesOptions& options) {
  const auto environment = distributed::Environment::from_variables();
  const at::Device device = choose_device(options, environment);
  const at::ScalarType dtype = options.dtype == "bf16" ? at::kBFloat16 : at::kFloat;
  if (environment.world_size == 1 && device.is_cpu()) {
    throw ConfigError(
        "one rank has nobody to exchange with: flowshard launch --nproc_per_node N -- bench collectives");
  }
  const auto ranks =
      distributed::ProcessGroup::create(environment, device, std::chrono::seconds(options.timeout_seconds));
  const bool shows_rows = environment.rank == 0 && !options.json;
  if (shows_rows) print_header(environment, device, options.dtype);
  distributed::BandwidthOptions bandwidth{
      .device = device, .dtype = dtype, .sizes = sizes_of(options, dtype), .repeats = options.repeats};
  if (shows_rows) bandwidth.on_result = print_row;
  std::vector<Bandwidth> rows;
  if (environment.world_size > 1) rows = measure_collectives(*ranks, bandwidth);
  if (!device.is_cpu()) {
    const std::vector<Bandwidth> copies = measure_copies(*ranks, bandwidth);
    rows.insert(rows.end(), copies.begin(), copies.end());
  }
  if (environment.rank == 0 && options.json)
    print_json(rows, options, environment.world_size, !device.is_cpu());
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "Measure the machine");
  bench->require_subcommand(1);
  add_bench_step(*bench);
  auto options = std::make_shared<CollectivesOptions>();
  CLI::App* collectives =
      bench->add_subcommand("collectives", "Bandwidths between the ranks of a job, and between GPU and host");
  collectives->add_option("--device", options->device, "cpu or cuda (default: cuda if there is a GPU)")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  collectives->add_option("--dtype", options->dtype, "Of the elements")
      ->check(CLI::IsMember({"bf16", "fp32"}))
      ->capture_default_str();
  collectives->add_option("--max-mib", options->max_mib, "Largest tensor (default: a double block of FLUX.1)")
      ->check(number_between(0.001, 1'048'576));
  collectives->add_option("--repeats", options->repeats, "Of each measurement")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
  collectives
      ->add_option("--timeout", options->timeout_seconds, "Seconds that an operation may wait for a rank")
      ->check(CLI::Range(1, 86'400))
      ->capture_default_str();
  collectives->add_flag("--json", options->json, "One JSON object, in bytes and seconds");
  collectives->footer(
      "Every rank of the job runs it; rank 0 prints.\n"
      "Examples:\n"
      "  flowshard launch --nproc_per_node gpu -- bench collectives\n"
      "  torchrun --no-python --nnodes 2 --nproc_per_node 8 --rdzv_endpoint gpu-1:29500 flowshard bench "
      "collectives");
  collectives->callback([options] { run(*options); });
}

}  // namespace flowshard::apps
