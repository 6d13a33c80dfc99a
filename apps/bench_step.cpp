// flowshard bench step: seconds, share of peak and memory of an optimizer step, as a configuration has it.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench.h"
#include "distributed/environment.h"
#include "number_between.h"
#include "overrides.h"
#include "training/step_bench.h"
#include "training/train_config.h"

namespace flowshard::apps {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

struct StepOptions {
  std::string config_file;
  std::vector<ConfigEntry> overrides;
  int64_t steps = 8, warm_up = 3;
  double peak_tflops = 989;
  bool json = false;
};

nlohmann::ordered_json to_json(const training::StepBench& bench, const StepOptions& options) {
  const double seconds = bench.median_seconds();
  const auto [low, high] = std::ranges::minmax(bench.step_seconds);
  const double tflops = bench.train_flops / seconds / 1e12;
  return {{"step_seconds", seconds},
          {"step_seconds_low", low},
          {"step_seconds_high", high},
          {"tflops", tflops},
          {"peak_share", tflops / options.peak_tflops},
          {"waiting_seconds", bench.waiting_seconds},
          {"phase_seconds", bench.phase_seconds},
          {"predicted_gib", static_cast<double>(bench.predicted) / kGiB},
          {"allocated_gib", static_cast<double>(bench.allocated) / kGiB},
          {"reserved_gib", static_cast<double>(bench.reserved) / kGiB},
          {"host_gib", static_cast<double>(bench.host_bytes) / kGiB},
          {"loss", bench.last_loss}};
}

void print(const training::StepBench& bench, const StepOptions& options) {
  const auto [low, high] = std::ranges::minmax(bench.step_seconds);
  const double seconds = bench.median_seconds(), tflops = bench.train_flops / seconds / 1e12;
  fmt::print("{:.4f} s a step (median of {}; {:.4f} to {:.4f}), loss {:.6g}\n", seconds,
             bench.step_seconds.size(), low, high, bench.last_loss);
  if (bench.allocated > 0) {
    fmt::print("{:.1f} TFLOP/s a rank, {:.1f} % of {:g} (three forward passes' work, docs/memory.md)\n",
               tflops, 100 * tflops / options.peak_tflops, options.peak_tflops);
  } else {  // on CPUs
    fmt::print("{:.3g} TFLOP/s a rank (three forward passes' work, docs/memory.md)\n", tflops);
    fmt::print("{:.4f} s of it in collectives ({:.1f} %)\n", bench.waiting_seconds,
               100 * bench.waiting_seconds / seconds);
  }
  for (const auto& [name, time] : bench.phase_seconds) fmt::print("  {:<16} {:.4f} s\n", name, time);
  if (bench.allocated > 0) {
    fmt::print("memory of the GPU: {:.2f} GiB predicted, {:.2f} allocated, {:.2f} reserved\n",
               static_cast<double>(bench.predicted) / kGiB, static_cast<double>(bench.allocated) / kGiB,
               static_cast<double>(bench.reserved) / kGiB);
  }
  if (bench.host_bytes > 0)
    fmt::print("memory of the host: {:.2f} GiB\n", static_cast<double>(bench.host_bytes) / kGiB);
}

void run(const StepOptions& options) {
  const training::TrainConfig config = training::load_train_config(options.config_file, options.overrides);
  const auto environment = distributed::Environment::from_variables();
  const training::StepBench bench = training::bench_step(config, environment, options.warm_up, options.steps);
  if (environment.rank != 0) return;
  options.json ? fmt::print("{}\n", to_json(bench, options).dump()) : print(bench, options);
}

}  // namespace

void add_bench_step(CLI::App& bench) {
  auto options = std::make_shared<StepOptions>();
  CLI::App* step = bench.add_subcommand(
      "step",
      "Time of an optimizer step with random weights and made-up batches, and what it takes of memory");
  step->add_option("CONFIG", options->config_file,
                   "Configuration of `flowshard train`; of model.path only the "
                   "config.json files are read, of data only the size")
      ->required();
  add_overrides(*step, options->overrides);
  step->add_option("--steps", options->steps, "Steps that are measured")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
  step->add_option("--warm-up", options->warm_up, "Steps before them")
      ->check(CLI::Range(0, 10'000))
      ->capture_default_str();
  step->add_option("--peak-tflops", options->peak_tflops, "Of a GPU, for the share of peak")
      ->check(number_between(0.001, 1e6))
      ->capture_default_str();
  step->add_flag("--json", options->json, "One JSON object");
  step->footer(
      "Every rank of the job runs it; rank 0 prints.\n"
      "Examples:\n"
      "  flowshard bench step run.toml --set memory.activation_checkpointing=full\n"
      "  flowshard launch --nproc_per_node gpu -- bench step run.toml --set parallel.strategy=shard_grad_op");
  step->callback([options] { run(*options); });
}

}  // namespace flowshard::apps
