// flowshard plan: what a training run will take of memory, disk and time, before it is started.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "number_between.h"
#include "overrides.h"
#include "subcommands.h"
#include "training/memory_advice.h"
#include "training/model_sizes.h"
#include "training/step_estimate.h"

namespace flowshard::apps {
namespace {

using Json = nlohmann::ordered_json;
using training::gibibytes;

struct PlanOptions {
  std::string config_file;
  std::vector<ConfigEntry> overrides;
  training::JobSize job;
  std::optional<double> gpu_memory_gib;
  double peak_tflops = 989, peak_share = 40, bandwidth_gbs = 265;
  bool json = false;
};

struct Plan {
  training::MemoryEstimate memory;
  training::StepEstimate step;
  std::vector<training::MemoryAdvice> advice;
  bool on_gpu = false;
};

Plan make_plan(const PlanOptions& options) {
  const training::TrainConfig config = training::load_train_config(options.config_file, options.overrides);
  const int64_t shards = training::shard_count(config, options.job);
  if (options.job.num_ranks % shards != 0) {
    throw ConfigError("--gpus {} is no multiple of the {} ranks that share a model (parallel.shard_size)",
                      options.job.num_ranks, shards);
  }
  const training::ModelSizes model = training::model_sizes({config.model.path});
  return {.memory = training::estimate_memory(config, model, options.job),
          .step = training::estimate_step(config, model, options.job,
                                          {.peak_flops = options.peak_tflops * 1e12,
                                           .peak_share = options.peak_share / 100,
                                           .bytes_per_second = options.bandwidth_gbs * 1e9}),
          .advice = training::advise_memory(config, model, options.job),
          .on_gpu = config.run.device == training::Device::kCuda};
}

int64_t allowed_bytes(const PlanOptions& options) {
  return static_cast<int64_t>(*options.gpu_memory_gib * 1024) << 20;
}

Json to_json(const std::vector<training::MemoryItem>& items) {
  Json json = Json::object();
  for (const auto& item : items) json[item.name] = item.bytes;
  return json;
}

Json to_json(const Plan& plan, const PlanOptions& options) {
  const auto& [memory, step, advice, on_gpu] = plan;
  Json json = {{"ranks", options.job.num_ranks},
               {"device", on_gpu ? "cuda" : "cpu"},
               {"device_bytes",
                {{"resident", to_json(memory.resident)},
                 {"largest_of", to_json(memory.phases)},
                 {"context", memory.context_bytes},
                 {"total", memory.device()}}},
               {"host_bytes", to_json(memory.host)},
               {"disk_bytes", {{"checkpoint", memory.checkpoint_bytes}, {"total", memory.disk_bytes}}}};
  json["host_bytes"]["total"] = memory.host_bytes();
  if (on_gpu) {
    json["step"] = {{"seconds", step.step_seconds()},
                    {"compute_seconds", step.compute_seconds},
                    {"communication_seconds", step.communication_seconds},
                    {"optimizer_seconds", step.optimizer_seconds},
                    {"train_flops_per_sample", step.train_flops},
                    {"communication_bytes", step.communication_bytes}};
  }
  if (options.gpu_memory_gib) json["fits"] = memory.device() <= allowed_bytes(options);
  json["advice"] = Json::array();
  for (const auto& one : advice)
    json["advice"].push_back({{"setting", one.setting}, {"saves_bytes", one.saved_bytes}});
  return json;
}

void print_line(std::string_view name, int64_t bytes, std::string_view note = "") {
  fmt::print("  {:<24} {:>12}{}\n", name, gibibytes(bytes), note);
}

void print_memory(const Plan& plan, const PlanOptions& options) {
  const training::MemoryEstimate& memory = plan.memory;
  fmt::print("each of {} {}:\n", options.job.num_ranks, plan.on_gpu ? "GPUs" : "ranks on CPUs");
  for (const auto& item : memory.resident) print_line(item.name, item.bytes);
  for (const auto& item : memory.phases) print_line(item.name, item.bytes, "  (of these the largest)");
  if (memory.context_bytes > 0) print_line("CUDA and libraries", memory.context_bytes);
  print_line("total", memory.device());
  fmt::print("host, beside that, {} ranks:\n", std::min(options.job.num_ranks, options.job.ranks_per_host));
  for (const auto& item : memory.host) print_line(item.name, item.bytes);
  print_line("total", memory.host_bytes());
  fmt::print("disk:\n");
  print_line("a checkpoint", memory.checkpoint_bytes);
  print_line("checkpoint.keep + 1", memory.disk_bytes);
}

void print_step(const Plan& plan, const PlanOptions& options) {
  const training::StepEstimate& step = plan.step;
  fmt::print("optimizer step: {:.2f} s\n", step.step_seconds());
  fmt::print("  computing      {:.2f} s, at {:g} % of {:g} TFLOP/s; a sample is {:.1f} TFLOP\n",
             step.compute_seconds, options.peak_share, options.peak_tflops, step.train_flops / 1e12);
  fmt::print("  communicating  {:.2f} s beside it, {:.1f} GB at {:g} GB/s\n", step.communication_seconds,
             step.communication_bytes / 1e9, options.bandwidth_gbs);
  fmt::print("  optimizer      {:.2f} s\n", step.optimizer_seconds);
}

void print_verdict(const Plan& plan, const PlanOptions& options) {
  if (!options.gpu_memory_gib) return;
  const int64_t missing = plan.memory.device() - allowed_bytes(options);
  if (missing <= 0) {
    fmt::print("fits into {:g} GiB, {} are left\n", *options.gpu_memory_gib, gibibytes(-missing));
    return;
  }
  fmt::print("does not fit into {:g} GiB: {} too much\n", *options.gpu_memory_gib, gibibytes(missing));
  for (const auto& one : plan.advice)
    fmt::print("  --set {} saves {}\n", one.setting, gibibytes(one.saved_bytes));
}

void run(const PlanOptions& options) {
  const Plan plan = make_plan(options);
  if (options.json) {
    fmt::print("{}\n", to_json(plan, options).dump(2));
    return;
  }
  print_memory(plan, options);
  if (plan.on_gpu) print_step(plan, options);
  print_verdict(plan, options);
}

}  // namespace

void add_plan(CLI::App& app) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* plan = app.add_subcommand("plan", "Predict memory, disk and time of a training run");
  plan->add_option("CONFIG", options->config_file, "Configuration file (TOML) of flowshard train")
      ->required();
  plan->add_option("--gpus", options->job.num_ranks, "Ranks of the job")
      ->check(CLI::Range(1, 65'536))
      ->capture_default_str();
  plan->add_option("--gpus-per-host", options->job.ranks_per_host, "Ranks of one machine")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  plan->add_option("--gpu-memory", options->gpu_memory_gib, "GiB of one GPU: say whether the run fits")
      ->check(number_between(0.001, 1e6));
  plan->add_option("--peak-tflops", options->peak_tflops, "TFLOP/s of the GPU in bf16")
      ->check(number_between(0.001, 1e6))
      ->capture_default_str();
  plan->add_option("--peak-share", options->peak_share, "Percent of it that a step reaches")
      ->check(number_between(0.001, 100))
      ->capture_default_str();
  plan->add_option("--bandwidth", options->bandwidth_gbs, "GB/s that a collective moves through a rank")
      ->check(number_between(0.001, 1e6))
      ->capture_default_str();
  add_overrides(*plan, options->overrides);
  plan->add_flag("--json", options->json, "One JSON object, in bytes and seconds");
  plan->footer(
      "Needs no GPU and no weights, only the config.json files of the model.\n"
      "Example:\n  flowshard plan run.toml --gpus 8 --gpu-memory 80 --set "
      "memory.activation_checkpointing=full");
  plan->callback([options] { run(*options); });
}

}  // namespace flowshard::apps
