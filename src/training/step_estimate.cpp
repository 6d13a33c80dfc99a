#include "training/step_estimate.h"

#include <algorithm>

#include "training/value_bytes.h"

namespace flowshard::training {
namespace {

/// Of one sample: every weight of a linear twice a token, and the two products of attention.
double forward_flops(const TrainConfig& config, const ModelSizes& model) {
  const auto d = static_cast<double>(model.hidden_size), mlp = static_cast<double>(model.mlp_hidden_dim);
  const auto tokens = static_cast<double>(model.tokens(config));
  const auto num_double = static_cast<double>(model.num_double_blocks);
  const auto num_single = static_cast<double>(model.num_single_blocks);
  const auto text = static_cast<double>(config.text.max_sequence_length);
  // qkv, proj and the MLP of a stream; linear1 and linear2.
  const double weights_of_double = 4 * d * d + 2 * d * mlp;
  const double weights_of_single = d * (3 * d + mlp) + (d + mlp) * d;
  const double linears = 2 * tokens * (num_double * weights_of_double + num_single * weights_of_single);
  const double attention = 4 * tokens * tokens * d * (num_double + num_single);
  const double modulations = 2 * d * d * (12 * num_double + 3 * num_single);
  const double outside = 2 * d *
                         (text * static_cast<double>(model.context_in_dim) +
                          2 * (tokens - text) * static_cast<double>(model.in_channels));
  return linears + attention + modulations + outside;
}

/// That a rank sends in a step: of n ranks each passes (n - 1) / n of a buffer on to gather or to reduce it.
double communication_bytes(const TrainConfig& config, const ModelSizes& model, const JobSize& job) {
  const auto shards = static_cast<double>(shard_count(config, job));
  const double replicas = static_cast<double>(job.num_ranks) / shards;
  const auto parameters = static_cast<double>(model.transformer());
  const double param_bytes = value_bytes(config).param * parameters;
  const double reduce_bytes = value_bytes(config).reduce * parameters;
  const auto passes = static_cast<double>(config.train.gradient_accumulation_steps);
  const double reductions = config.train.no_sync || shards == 1 ? 1 : passes;
  const double gathers = config.parallel.strategy == Strategy::kShardGradOp ? 1 : 2;
  return passes * gathers * param_bytes * (shards - 1) / shards +
         reductions * reduce_bytes * ((shards - 1) / shards + 2 / shards * (replicas - 1) / replicas);
}

}  // namespace

double StepEstimate::step_seconds() const {
  return std::max(compute_seconds, communication_seconds) + optimizer_seconds;
}

StepEstimate estimate_step(const TrainConfig& config, const ModelSizes& model, const JobSize& job,
                           const MachineSpeed& speed) {
  StepEstimate estimate;
  estimate.forward_flops = forward_flops(config, model);
  estimate.train_flops = 3 * estimate.forward_flops;
  const bool runs_twice = config.memory.activation_checkpointing == ActivationCheckpointing::kFull;
  const auto samples =
      static_cast<double>(config.train.batch_size * config.train.gradient_accumulation_steps);
  estimate.compute_seconds =
      samples * estimate.forward_flops * (runs_twice ? 4 : 3) / (speed.peak_flops * speed.peak_share);
  estimate.communication_bytes = communication_bytes(config, model, job);
  estimate.communication_seconds = estimate.communication_bytes / speed.bytes_per_second;
  // Parameter and moments are read and written, the gradient is read, here and for its norm.
  const ValueBytes value = value_bytes(config);
  const auto own = static_cast<double>(model.transformer() / shard_count(config, job));
  const double on_gpu =
      own * (2 * (value.master + value.moments) + 2 * value.grad) / speed.memory_bytes_per_second;
  // What lies in host memory comes and goes; both ways at once.
  const double offloaded = (config.memory.offload_parameters ? value.master : 0) +
                           (config.memory.offload_optimizer ? value.moments + value.average : 0);
  estimate.optimizer_seconds = std::max(on_gpu, own * offloaded / speed.host_bytes_per_second);
  return estimate;
}

}  // namespace flowshard::training
