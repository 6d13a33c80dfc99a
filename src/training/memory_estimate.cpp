#include "training/memory_estimate.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "training/value_bytes.h"

namespace flowshard::training {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20, kGiB = int64_t{1} << 30;

// Measured; everything else is counted.
constexpr int64_t kContextBytes = 600 * kMiB;        // CUDA, its libraries' code
constexpr int64_t kCollectivesBytes = 400 * kMiB;    // NCCL's channels to the other ranks
constexpr int64_t kWorkspaceBytes = 256 * kMiB;      // of cuBLAS and cuDNN
constexpr double kBackwardMultiples = 21;            // of D values a token: gradients inside one block
constexpr double kOutsideBlocksMultiples = 4;        // ... what the layers before and after the blocks keep
constexpr double kEncodingCopies = 4;                // pictures at full resolution while one is encoded
constexpr int64_t kHostProcessBytes = 2 * kGiB;      // of a rank: program, libraries, text
constexpr int64_t kDecodedPictureBytes = 64 * kMiB;  // of each decoding thread
constexpr double kStoredMoments = 8;                 // bytes of a parameter's two moments in a checkpoint
constexpr int64_t kPrefetchedBatches = 2;
constexpr int64_t kStagingBuffers = 3;               // of fsdp/staged_update.h
constexpr int64_t kStagingSlice = int64_t{1} << 24;  // values

double as_double(int64_t value) { return static_cast<double>(value); }

// docs/memory.md: what a block keeps, in multiples of D values a token; M is the width of the MLP over D.
struct KeptMultiples {
  double double_block, single_block;
};

KeptMultiples kept_multiples(ActivationCheckpointing mode, const ModelSizes& model) {
  const double m = as_double(model.mlp_hidden_dim) / as_double(model.hidden_size);
  switch (mode) {
    case ActivationCheckpointing::kFull:
      return {1, 1};
    case ActivationCheckpointing::kSelective:
      return {8 + m, 6 + m};
    case ActivationCheckpointing::kNone:
      break;
  }
  return {13 + 2 * m, 11 + 2 * m};
}

int64_t rounded(double value) { return static_cast<int64_t>(value); }
int64_t divided(int64_t value, int64_t parts) { return (value + parts - 1) / parts; }

int64_t ranks_on_host(const JobSize& job) { return std::min(job.num_ranks, job.ranks_per_host); }

/// What a checkpoint holds: parameters, moments and averages. Moments in 8 bits are stored in fp32.
int64_t state_bytes(const TrainConfig& config, const ModelSizes& model) {
  const ValueBytes value = value_bytes(config);
  return rounded(as_double(model.transformer()) * (value.master + kStoredMoments + value.average));
}

/// What of a rank's shards lies in host memory: masters come first, while the budget lasts.
struct Offloaded {
  double masters = 0, moments = 0, averages = 0;  // bytes
  double all() const { return masters + moments + averages; }
};

Offloaded offloaded(const TrainConfig& config, const ModelSizes& model, const JobSize& job) {
  const ValueBytes value = value_bytes(config);
  const double own = as_double(divided(model.transformer(), shard_count(config, job)));
  double budget = config.memory.host_gib > 0
                      ? config.memory.host_gib * as_double(kGiB) / as_double(ranks_on_host(job))
                      : std::numeric_limits<double>::infinity();
  const auto take = [&](bool offload, double bytes) {
    const double taken = offload ? std::min(bytes, budget) : 0;
    budget -= taken;
    return taken;
  };
  Offloaded result;
  result.masters = take(config.memory.offload_parameters, own * value.master);
  result.moments = take(config.memory.offload_optimizer, own * value.moments);
  result.averages = take(config.memory.offload_optimizer, own * value.average);
  return result;
}

/// Slices of what lies in host memory, on their way through the device.
double staging_bytes(const TrainConfig& config, const Offloaded& host) {
  const ValueBytes value = value_bytes(config);
  const double staged = (host.masters > 0 ? value.master : 0) + (host.moments > 0 ? value.moments : 0) +
                        (host.averages > 0 ? value.average : 0);
  const double gathering = host.masters > 0 ? 2 * value.master : 0;
  return (kStagingBuffers * staged + gathering) * as_double(kStagingSlice);
}

/// On a GPU gradients are freed after the optimizer's step and made again one block after another, where no
/// later pass adds to them.
bool gradients_stay(const TrainConfig& config) {
  return config.run.device == Device::kCpu || config.train.gradient_accumulation_steps > 1;
}

/// The parts that fsdp and the optimizer hold: shards, gathered parameters, gradients.
void add_shards(MemoryEstimate& estimate, const TrainConfig& config, const ModelSizes& model,
                const JobSize& job) {
  const ValueBytes value = value_bytes(config);
  const int64_t shards = shard_count(config, job), all = model.transformer();
  const Offloaded host = offloaded(config, model, job);
  const auto add = [&](const char* name, int64_t values, double bytes, double elsewhere = 0) {
    const double here = as_double(values) * bytes - elsewhere;
    if (here > 0) estimate.resident.push_back({name, rounded(here)});
  };
  add("parameters (master)", divided(all, shards), value.master, host.masters);
  add("optimizer state", divided(all, shards), value.moments, host.moments);
  add("averaged weights", divided(all, shards), value.average, host.averages);
  if (gradients_stay(config)) add("gradients", divided(all, shards), value.grad);
  if (config.run.device == Device::kCuda) add("staging from the host", 1, staging_bytes(config, host));

  // Two buffers of a block in turn, or one for each block; none where the shards are used as they are.
  const int64_t rotating = model.root + 2 * model.largest_block();
  const bool several_passes = config.train.gradient_accumulation_steps > 1;
  int64_t gathered = config.parallel.strategy == Strategy::kShardGradOp ? all : rotating;
  int64_t grads = several_passes && config.train.no_sync ? all : rotating;
  // What is reduced while the sum of earlier passes is kept.
  if (several_passes && !config.train.no_sync) grads += divided(rotating, shards);
  if (shards == 1 && value.param == value.master && host.masters == 0) gathered = 0;
  if (shards == 1 && value.reduce == value.grad) grads = 0;
  add("gathered parameters", gathered, value.param);
  add("gradients of blocks", grads, value.reduce);
  // Gloo receives the others' part of a gradient beside the own one.
  if (config.run.device == Device::kCpu && shards > 1)
    add("receiving gradients", 2 * model.largest_block(), value.reduce);
}

/// Bytes of D values of each token of a batch.
double unit_bytes(const TrainConfig& config, const ModelSizes& model) {
  return as_double(config.train.batch_size * model.tokens(config) * model.hidden_size) *
         value_bytes(config).param;
}

int64_t activation_bytes(const TrainConfig& config, const ModelSizes& model) {
  const ActivationCheckpointing mode = config.memory.activation_checkpointing;
  const KeptMultiples kept = kept_multiples(mode, model);
  double multiples = as_double(model.num_double_blocks) * kept.double_block +
                     as_double(model.num_single_blocks) * kept.single_block + kOutsideBlocksMultiples;
  if (mode == ActivationCheckpointing::kFull)
    multiples += kept_multiples(ActivationCheckpointing::kNone, model).double_block - 1;
  return rounded(multiples * unit_bytes(config, model));
}

/// The most of activations and gradients: backward makes a block's gradients and then frees its activations.
int64_t backward_bytes(const TrainConfig& config, const ModelSizes& model, double activations,
                       double bytes_of_grad) {
  const KeptMultiples kept = kept_multiples(config.memory.activation_checkpointing, model);
  double now = activations + as_double(model.root) * bytes_of_grad, most = now;
  const auto pass_blocks = [&](int64_t count, int64_t parameters, double multiples) {
    for (int64_t i = 0; i < count; ++i) {
      now += as_double(parameters) * bytes_of_grad;
      most = std::max(most, now);
      now -= multiples * unit_bytes(config, model);
    }
  };
  pass_blocks(model.num_single_blocks, model.single_block, kept.single_block);
  pass_blocks(model.num_double_blocks, model.double_block, kept.double_block);
  return rounded(most);
}

void add_phases(MemoryEstimate& estimate, const TrainConfig& config, const ModelSizes& model,
                const JobSize& job) {
  const double activations =
      as_double(activation_bytes(config, model)) + kBackwardMultiples * unit_bytes(config, model);
  const int64_t pixels = config.train.batch_size * config.data.height * config.data.width;
  const double encoding =
      kEncodingCopies * as_double(pixels * model.autoencoder_width) * value_bytes(config).buffer;
  if (gradients_stay(config)) {
    estimate.phases.push_back({"activations", rounded(activations)});
  } else {
    const double bytes_of_grad = value_bytes(config).grad / as_double(shard_count(config, job));
    estimate.phases.push_back(
        {"activations, gradients", backward_bytes(config, model, activations, bytes_of_grad)});
    estimate.phases.push_back({"gradients", rounded(as_double(model.transformer()) * bytes_of_grad)});
  }
  estimate.phases.push_back({"encoding a batch", rounded(encoding)});
}

void add_host(MemoryEstimate& estimate, const TrainConfig& config, const ModelSizes& model,
              const JobSize& job) {
  const int64_t ranks = ranks_on_host(job);
  const int64_t pictures = config.train.batch_size * config.data.height * config.data.width * 3;
  estimate.host.push_back({"processes", ranks * kHostProcessBytes});
  estimate.host.push_back({"reading data", ranks * (kPrefetchedBatches * pictures +
                                                    config.data.num_threads * kDecodedPictureBytes)});
  const double moved = offloaded(config, model, job).all();
  if (moved > 0) estimate.host.push_back({"offloaded shards", rounded(as_double(ranks) * moved)});
  // Decoded moments do not fit on a GPU beside the rest: they are copied even if the save is waited for.
  const bool decoded =
      config.optimizer.state_dtype == StateDtype::kInt8 && config.run.device == Device::kCuda;
  if (!config.checkpoint.async && !decoded) return;
  const int64_t shards = shard_count(config, job), copying = std::min(ranks, shards);
  estimate.host.push_back({"copy for a checkpoint", copying * divided(state_bytes(config, model), shards)});
}

}  // namespace

int64_t shard_count(const TrainConfig& config, const JobSize& job) {
  switch (config.parallel.strategy) {
    case Strategy::kNoShard:
      return 1;
    case Strategy::kHybridShard:
      return config.parallel.shard_size > 0 ? config.parallel.shard_size : ranks_on_host(job);
    default:
      return job.num_ranks;
  }
}

MemoryEstimate estimate_memory(const TrainConfig& config, const ModelSizes& model, const JobSize& job) {
  MemoryEstimate estimate;
  const bool on_gpu = config.run.device == Device::kCuda;
  add_shards(estimate, config, model, job);
  const double frozen = as_double(model.text_encoders + model.autoencoder) * value_bytes(config).buffer;
  estimate.resident.push_back({"frozen encoders", rounded(frozen)});
  if (on_gpu) estimate.resident.push_back({"workspaces", kWorkspaceBytes});
  add_phases(estimate, config, model, job);
  if (on_gpu) estimate.context_bytes = kContextBytes + (job.num_ranks > 1 ? kCollectivesBytes : 0);
  add_host(estimate, config, model, job);
  estimate.checkpoint_bytes = state_bytes(config, model);
  estimate.disk_bytes = (config.checkpoint.keep + 1) * estimate.checkpoint_bytes;
  return estimate;
}

int64_t ModelSizes::largest_block() const {
  return std::max(num_double_blocks > 0 ? double_block : 0, num_single_blocks > 0 ? single_block : 0);
}

int64_t ModelSizes::tokens(const TrainConfig& config) const {
  const int64_t side = 2 * downsampling;
  return config.text.max_sequence_length + config.data.height / side * (config.data.width / side);
}

int64_t MemoryEstimate::tensors() const {
  int64_t sum = 0, largest_phase = 0;
  for (const MemoryItem& item : resident) sum += item.bytes;
  for (const MemoryItem& item : phases) largest_phase = std::max(largest_phase, item.bytes);
  return sum + largest_phase;
}

int64_t MemoryEstimate::host_bytes() const {
  int64_t sum = 0;
  for (const MemoryItem& item : host) sum += item.bytes;
  return sum;
}

std::string gibibytes(int64_t bytes) {
  return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / static_cast<double>(kGiB));
}

}  // namespace flowshard::training
