// The configuration of `flowshard train`. Plain data, checked when it is read, so that everything behind it
// can rely on the ranges. Free of LibTorch. `flowshard train --explain` prints what each key means.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/config_value.h"

namespace flowshard::training {

enum class Device { kCpu, kCuda };
enum class Initialization { kPretrained, kRandom };
enum class Strategy { kFullShard, kShardGradOp, kNoShard, kHybridShard };
enum class Precision { kFp32, kBf16, kFp16, kBf16Pure };
enum class Dtype { kAuto, kFp32, kBf16, kFp16 };
enum class ActivationCheckpointing { kNone, kSelective, kFull };
enum class Shift { kNone, kResolution };
enum class Backend { kAuto, kNccl, kGloo };
enum class StateDtype { kFp32, kInt8 };
enum class ValidationTimesteps { kMidpoints, kMlperf };
enum class Decay { kConstant, kLinear, kCosine };

/// The member initializers are the defaults; they suit a full fine-tuning of FLUX.1-dev. Where a comment is
/// missing, train_config.cpp says what a key means.
struct TrainConfig {
  struct Run {
    std::string output_dir;
    int64_t seed = 0;
    Device device = Device::kCpu;
    int64_t log_every_steps = 10;
    bool log_phases = false;
  } run;

  struct Model {
    std::string path;
    Initialization initialization = Initialization::kPretrained;
  } model;

  struct Data {
    std::vector<std::string> shards;
    int64_t height = 1024;
    int64_t width = 1024;
    int64_t num_threads = 4;
    double max_bad_fraction = 0.01;
    bool cache_in_memory = false;
  } data;

  struct Text {
    int64_t max_sequence_length = 512;
    double caption_dropout = 0.1;
  } text;

  struct Train {
    int64_t steps = 0;
    int64_t batch_size = 1;  // of one rank and one accumulation step
    int64_t gradient_accumulation_steps = 1;
    double max_grad_norm = 1.0;  // 0: no clipping
    bool no_sync = false;
    int64_t max_skipped_steps = 10;
  } train;

  struct Parallel {
    Strategy strategy = Strategy::kFullShard;
    int64_t shard_size = 0;  // 0: the ranks of a host
  } parallel;

  struct PrecisionMode {
    Precision mode = Precision::kFp32;
    Dtype param_dtype = Dtype::kAuto;
    Dtype reduce_dtype = Dtype::kAuto;
    Dtype buffer_dtype = Dtype::kAuto;
  } precision;

  struct Memory {
    ActivationCheckpointing activation_checkpointing = ActivationCheckpointing::kNone;
    bool offload_parameters = false;
    bool offload_optimizer = false;
    double host_gib = 0;  // 0: no limit
  } memory;

  struct Flow {
    double timestep_mean = 0.0;
    double timestep_std = 1.0;
    Shift shift = Shift::kResolution;
    double guidance = 1.0;
  } flow;

  struct Optimizer {
    double lr = 2e-5;
    double beta1 = 0.9;
    double beta2 = 0.999;
    double eps = 1e-8;
    double weight_decay = 0.01;
    StateDtype state_dtype = StateDtype::kFp32;
  } optimizer;

  struct Schedule {
    int64_t warmup_steps = 100;
    Decay decay = Decay::kConstant;
    double decay_start_fraction = 0.0;
    double final_fraction = 0.0;
  } schedule;

  struct Validation {
    std::vector<std::string> shards;  // none: no validation
    int64_t every_steps = 1000;
    int64_t samples = 0;  // 0: all
    ValidationTimesteps timesteps = ValidationTimesteps::kMidpoints;
  } validation;

  struct Ema {
    double decay = 0.0;  // 0: none is kept
  } ema;

  struct Checkpoint {
    int64_t every_steps = 200;
    int64_t keep = 3;
    bool async = true;
  } checkpoint;

  struct Distributed {
    Backend backend = Backend::kAuto;
    int64_t timeout_seconds = 600;
  } distributed;
};

/// Reads `file` with `overrides` (parse_assignment) on top; the last of several for one key counts. Throws
/// one ConfigError for all mistakes, before anything is written.
TrainConfig load_train_config(const std::filesystem::path& file,
                              const std::vector<ConfigEntry>& overrides = {});

/// The same from the text of a file, which messages call `source`.
TrainConfig parse_train_config(std::string_view text, const std::string& source,
                               const std::vector<ConfigEntry>& overrides = {});

/// Every key, defaults included, as TOML that parse_train_config() reads back to the same configuration.
std::string to_toml(const TrainConfig& config);

/// The table of all keys with allowed values, default and meaning.
std::string explain_train_config();

}  // namespace flowshard::training
