#include "training/train_config.h"

#include <fmt/format.h>

#include "core/config.h"

namespace flowshard::training {
namespace {

void add_run_keys(ConfigSchema& schema, TrainConfig& config) {
  schema.add("run.output_dir", &config.run.output_dir, "folder for metrics.jsonl and checkpoints/")
      .required();
  schema.add("run.seed", &config.run.seed, "seed of sample order, noise, timesteps and initialization",
             {.min = 0});
  schema.add("run.device", &config.run.device, "where the ranks compute",
             {{"cpu", Device::kCpu}, {"cuda", Device::kCuda}});
  schema.add("run.log_every_steps", &config.run.log_every_steps,
             "steps between two progress lines when the output is no terminal", {.min = 1, .max = 1'000'000});
  schema.add("run.log_phases", &config.run.log_phases,
             "every rank writes what it begins in each step to stderr: where does one hang?");

  schema.add("model.path", &config.model.path, "model folder in the diffusers layout").required();
  schema.add("model.initialization", &config.model.initialization,
             "weights of the transformer: its files, or random from transformer/config.json alone",
             {{"pretrained", Initialization::kPretrained}, {"random", Initialization::kRandom}});
}

void add_data_keys(ConfigSchema& schema, TrainConfig& config) {
  schema
      .add("data.shards", &config.data.shards,
           "WebDataset tars: paths, or patterns like dir/a-{000..007}.tar")
      .required();
  const IntegerRange image_side = {.min = 16, .max = 4096, .multiple_of = 16};
  schema.add("data.height", &config.data.height, "height of the training images, pixels", image_side);
  schema.add("data.width", &config.data.width, "width of the training images, pixels", image_side);
  schema.add("data.num_threads", &config.data.num_threads, "threads of a rank that decode images",
             {.min = 1, .max = 256});
  schema.add("data.max_bad_fraction", &config.data.max_bad_fraction,
             "share of unreadable samples above which the run stops", {.min = 0.0, .max = 1.0});
  schema.add("data.cache_in_memory", &config.data.cache_in_memory,
             "keep latents and text embeddings of the samples already seen, in host memory");

  schema.add("text.max_sequence_length", &config.text.max_sequence_length,
             "tokens that the T5 prompt is cut or padded to", {.min = 1, .max = 512});
  schema.add("text.caption_dropout", &config.text.caption_dropout,
             "share of samples trained with the empty caption", {.min = 0.0, .max = 1.0});
}

void add_step_keys(ConfigSchema& schema, TrainConfig& config) {
  schema
      .add("train.steps", &config.train.steps,
           "optimizer steps of the whole run; 0 only writes the initial weights",
           {.min = 0, .max = 1'000'000'000})
      .required();
  schema.add("train.batch_size", &config.train.batch_size, "samples a rank and accumulation step",
             {.min = 1, .max = 65'536});
  schema.add("train.gradient_accumulation_steps", &config.train.gradient_accumulation_steps,
             "batches whose gradients make one optimizer step", {.min = 1, .max = 4'096});
  schema.add("train.max_grad_norm", &config.train.max_grad_norm,
             "global gradient norm that larger gradients are scaled down to; 0: no clipping", {.min = 0.0});

  schema.add(
      "train.no_sync", &config.train.no_sync,
      "add up the gradients of a step's batches on each rank and reduce them once: less communication, "
      "memory for a whole gradient");
  schema.add("train.max_skipped_steps", &config.train.max_skipped_steps,
             "steps in a row whose gradient is not finite, each skipped, after which the run stops",
             {.min = 1, .max = 1'000'000});

  schema.add(
      "parallel.strategy", &config.parallel.strategy,
      "what is shared out over the ranks: all (full_shard), all but the parameters between forward and "
      "backward (shard_grad_op), nothing (no_shard), all within groups of ranks (hybrid_shard)",
      {{"full_shard", Strategy::kFullShard},
       {"shard_grad_op", Strategy::kShardGradOp},
       {"no_shard", Strategy::kNoShard},
       {"hybrid_shard", Strategy::kHybridShard}});
  schema.add("parallel.shard_size", &config.parallel.shard_size,
             "ranks of a group of hybrid_shard, which together hold one model; 0: those of a host",
             {.min = 0, .max = 65'536});

  const std::vector<std::pair<std::string, Dtype>> dtypes = {
      {"auto", Dtype::kAuto}, {"fp32", Dtype::kFp32}, {"bf16", Dtype::kBf16}, {"fp16", Dtype::kFp16}};
  schema.add(
      "precision.mode", &config.precision.mode,
      "bf16, fp16 (with a loss scale): of the forward and backward pass, all else fp32; bf16_pure: also the "
      "weights that the optimizer changes, rounded stochastically",
      {{"fp32", Precision::kFp32},
       {"bf16", Precision::kBf16},
       {"fp16", Precision::kFp16},
       {"bf16_pure", Precision::kBf16Pure}});
  schema.add("precision.param_dtype", &config.precision.param_dtype,
             "type of gathered parameters and activations; auto: that of precision.mode", dtypes);
  schema.add("precision.reduce_dtype", &config.precision.reduce_dtype,
             "type of gradients and of their sum over the ranks; auto: fp32, with bf16_pure bf16", dtypes);
  schema.add("precision.buffer_dtype", &config.precision.buffer_dtype,
             "type of the frozen encoders and of the embeddings they make; auto: fp32 with fp32, else bf16",
             dtypes);

  schema.add("memory.activation_checkpointing", &config.memory.activation_checkpointing,
             "what backward computes again instead of keeping it: nothing, norms and GELUs, or whole blocks",
             {{"none", ActivationCheckpointing::kNone},
              {"selective", ActivationCheckpointing::kSelective},
              {"full", ActivationCheckpointing::kFull}});
  schema.add("memory.offload_parameters", &config.memory.offload_parameters,
             "keep the weights that the optimizer changes in host memory, copied block by block to be used");
  schema.add("memory.offload_optimizer", &config.memory.offload_optimizer,
             "keep moments and averages in host memory, streamed through the GPU in the optimizer step");
  schema.add(
      "memory.host_gib", &config.memory.host_gib,
      "GiB of host memory that the ranks of a host may take for that; the rest stays on the GPU; 0: no limit",
      {.min = 0.0, .max = 1e6});
}

void add_flow_keys(ConfigSchema& schema, TrainConfig& config) {
  schema.add("flow.timestep_mean", &config.flow.timestep_mean,
             "timestep t = sigmoid(mean + std * N(0, 1)), 1 = noise", {.min = -20.0, .max = 20.0});
  schema.add("flow.timestep_std", &config.flow.timestep_std, "see flow.timestep_mean",
             {.min = 0.0, .max = 20.0});
  schema.add("flow.shift", &config.flow.shift,
             "move t towards noise by the number of image tokens, as FLUX.1-dev was trained",
             {{"none", Shift::kNone}, {"resolution", Shift::kResolution}});
  schema.add("flow.guidance", &config.flow.guidance,
             "guidance given to the model; 1 keeps a distilled model distilled", {.min = 0.0, .max = 100.0});
}

void add_optimizer_keys(ConfigSchema& schema, TrainConfig& config) {
  schema.add("optimizer.lr", &config.optimizer.lr, "AdamW peak learning rate", {.min = 0.0, .max = 10.0});
  const NumberRange beta = {.min = 0.0, .max = 1.0, .max_excluded = true};
  schema.add("optimizer.beta1", &config.optimizer.beta1, "decay of the mean of the gradient", beta);
  schema.add("optimizer.beta2", &config.optimizer.beta2, "decay of the mean of the squared gradient", beta);
  schema.add("optimizer.eps", &config.optimizer.eps, "added to the denominator of the update",
             {.min = 0.0, .max = 1.0, .min_excluded = true});
  schema.add("optimizer.weight_decay", &config.optimizer.weight_decay, "decoupled, times the learning rate",
             {.min = 0.0, .max = 1.0});

  schema.add(
      "optimizer.state_dtype", &config.optimizer.state_dtype,
      "type of the two moments; int8: codes of 8 bits with a scale for each 256 of them, 2 bytes a parameter "
      "instead of 8",
      {{"fp32", StateDtype::kFp32}, {"int8", StateDtype::kInt8}});

  schema.add("schedule.warmup_steps", &config.schedule.warmup_steps,
             "optimizer steps in which the learning rate rises linearly to its peak",
             {.min = 0, .max = 1'000'000'000});
  schema.add("schedule.decay", &config.schedule.decay, "course of the learning rate after that",
             {{"constant", Decay::kConstant}, {"linear", Decay::kLinear}, {"cosine", Decay::kCosine}});
  schema.add("schedule.decay_start_fraction", &config.schedule.decay_start_fraction,
             "share of train.steps after which it decays", {.min = 0.0, .max = 1.0, .max_excluded = true});
  schema.add("schedule.final_fraction", &config.schedule.final_fraction,
             "share of the peak that is left at the last step", {.min = 0.0, .max = 1.0});

  schema.add("ema.decay", &config.ema.decay, "decay a step of the averaged weights; 0: none are kept",
             {.min = 0.0, .max = 1.0, .max_excluded = true});
}

void add_validation_keys(ConfigSchema& schema, TrainConfig& config) {
  schema.add("validation.shards", &config.validation.shards,
             "WebDataset tars of the samples whose loss is measured, like data.shards; none: no validation");
  schema.add("validation.every_steps", &config.validation.every_steps,
             "optimizer steps between two validations; one is always made at the end",
             {.min = 1, .max = 1'000'000'000});
  schema.add("validation.samples", &config.validation.samples,
             "how many of them, from the first on, 8 at least; 0: all", {.min = 0, .max = 1'000'000'000});
  schema.add("validation.timesteps", &config.validation.timesteps,
             "t of sample i: (i mod 8 + 1/2) / 8 (midpoints) or (i mod 8) / 8 (mlperf)",
             {{"midpoints", ValidationTimesteps::kMidpoints}, {"mlperf", ValidationTimesteps::kMlperf}});
}

void add_job_keys(ConfigSchema& schema, TrainConfig& config) {
  schema.add("checkpoint.every_steps", &config.checkpoint.every_steps,
             "optimizer steps between checkpoints; one is always written at the end",
             {.min = 1, .max = 1'000'000'000});
  schema.add("checkpoint.keep", &config.checkpoint.keep, "newest checkpoints of this run that are kept",
             {.min = 1, .max = 1'000'000});
  schema.add("checkpoint.async", &config.checkpoint.async,
             "write checkpoints while training goes on, from a copy of the rank's shards in host memory");
  schema.add("distributed.backend", &config.distributed.backend,
             "what the ranks talk through: NCCL on GPUs and Gloo on CPUs, or Gloo on GPUs too, through host "
             "memory: slow, "
             "but several ranks may share a GPU",
             {{"auto", Backend::kAuto}, {"nccl", Backend::kNccl}, {"gloo", Backend::kGloo}});
  schema.add("distributed.timeout_seconds", &config.distributed.timeout_seconds,
             "seconds a rank waits for the others before it gives up", {.min = 1, .max = 86'400});
}

void add_rules(ConfigSchema& schema, const TrainConfig& config) {
  schema.add_rule([&config] {
    const int64_t samples = config.validation.samples;
    return samples > 0 && samples < 8
               ? fmt::format("validation.samples is {}: give 8 or more, one for each of the 8 timesteps",
                             samples)
               : std::string();
  });
  schema.add_rule([&config] {
    return config.distributed.backend == Backend::kNccl && config.run.device == Device::kCpu
               ? std::string(
                     "distributed.backend is \"nccl\" with run.device \"cpu\": use \"auto\" or \"gloo\"")
               : std::string();
  });
  schema.add_rule([&config] {
    const auto folder = [](const std::string& path) {
      return std::filesystem::path(path + "/").lexically_normal();
    };
    return folder(config.run.output_dir) == folder(config.model.path)
               ? std::string("run.output_dir is the folder of model.path; give the run a folder of its own")
               : std::string();
  });
}

void register_keys(ConfigSchema& schema, TrainConfig& config) {
  add_run_keys(schema, config);
  add_data_keys(schema, config);
  add_step_keys(schema, config);
  add_flow_keys(schema, config);
  add_optimizer_keys(schema, config);
  add_validation_keys(schema, config);
  add_job_keys(schema, config);
  add_rules(schema, config);
}

constexpr const char* kHint = "flowshard train --explain lists all keys";

}  // namespace

TrainConfig load_train_config(const std::filesystem::path& file, const std::vector<ConfigEntry>& overrides) {
  return parse_train_config(read_config_file(file), file.string(), overrides);
}

TrainConfig parse_train_config(std::string_view text, const std::string& source,
                               const std::vector<ConfigEntry>& overrides) {
  TrainConfig config;
  ConfigSchema schema(kHint);
  register_keys(schema, config);
  std::vector<ConfigEntry> entries = parse_toml(text, source);
  entries.insert(entries.end(), overrides.begin(), overrides.end());
  schema.assign(entries, source);
  return config;
}

std::string to_toml(const TrainConfig& config) {
  TrainConfig copy = config;
  ConfigSchema schema(kHint);
  register_keys(schema, copy);
  return schema.dump();
}

std::string explain_train_config() {
  TrainConfig defaults;
  ConfigSchema schema(kHint);
  register_keys(schema, defaults);
  return schema.explain();
}

}  // namespace flowshard::training
