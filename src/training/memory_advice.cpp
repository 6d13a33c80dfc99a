#include "training/memory_advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace flowshard::training {
namespace {

struct Change {
  std::string setting;
  std::function<void(TrainConfig&)> apply;
};

std::vector<Change> changes(const TrainConfig& config) {
  std::vector<Change> result = {
      {"parallel.strategy=full_shard", [](TrainConfig& c) { c.parallel.strategy = Strategy::kFullShard; }},
      {"memory.activation_checkpointing=full",
       [](TrainConfig& c) { c.memory.activation_checkpointing = ActivationCheckpointing::kFull; }},
      {"optimizer.state_dtype=int8", [](TrainConfig& c) { c.optimizer.state_dtype = StateDtype::kInt8; }},
      {"train.no_sync=false", [](TrainConfig& c) { c.train.no_sync = false; }},
      {"ema.decay=0", [](TrainConfig& c) { c.ema.decay = 0; }}};
  if (config.run.device == Device::kCuda) {
    result.push_back(
        {"memory.offload_optimizer=true", [](TrainConfig& c) { c.memory.offload_optimizer = true; }});
    result.push_back(
        {"memory.offload_parameters=true", [](TrainConfig& c) { c.memory.offload_parameters = true; }});
  }
  if (config.precision.mode == Precision::kFp32) {
    result.push_back({"precision.mode=bf16", [](TrainConfig& c) { c.precision.mode = Precision::kBf16; }});
  } else {
    result.push_back(
        {"precision.mode=bf16_pure", [](TrainConfig& c) { c.precision.mode = Precision::kBf16Pure; }});
  }
  if (config.train.batch_size % 2 == 0) {
    const int64_t half = config.train.batch_size / 2, passes = 2 * config.train.gradient_accumulation_steps;
    result.push_back(
        {fmt::format("train.batch_size={} with train.gradient_accumulation_steps={}", half, passes),
         [half, passes](TrainConfig& c) {
           c.train.batch_size = half;
           c.train.gradient_accumulation_steps = passes;
         }});
  }
  return result;
}

}  // namespace

std::vector<MemoryAdvice> advise_memory(const TrainConfig& config, const ModelSizes& model,
                                        const JobSize& job, size_t limit) {
  const int64_t now = estimate_memory(config, model, job).device();
  std::vector<MemoryAdvice> advice;
  for (const Change& change : changes(config)) {
    TrainConfig changed = config;
    change.apply(changed);
    const int64_t saved = now - estimate_memory(changed, model, job).device();
    if (saved > now / 100) advice.push_back({change.setting, saved});
  }
  std::stable_sort(advice.begin(), advice.end(),
                   [](const auto& a, const auto& b) { return a.saved_bytes > b.saved_bytes; });
  if (advice.size() > limit) advice.resize(limit);
  return advice;
}

std::string to_text(const std::vector<MemoryAdvice>& advice) {
  std::string text;
  for (const MemoryAdvice& one : advice) {
    text += fmt::format("{}{} saves {}", text.empty() ? "" : ", ", one.setting, gibibytes(one.saved_bytes));
  }
  return text;
}

}  // namespace flowshard::training
