#include "training/trainer.h"

#include <ATen/Context.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>

#include "core/error.h"
#include "dataset/dataset.h"
#include "distributed/process_group.h"
#include "flow_matching/latents.h"
#include "flow_matching/loss.h"
#include "flow_matching/schedule.h"
#include "fsdp/fully_shard.h"
#include "model_folder/model_folder.h"
#include "models/flow_transformer/flow_transformer.h"
#include "telemetry/metrics_writer.h"
#include "telemetry/progress_reporter.h"
#include "training/learning_rate.h"
#include "training/optimizer.h"
#include "training/run_checkpoints.h"
#include "training/sample_encoder.h"

namespace flowshard::training {
namespace {

using Clock = std::chrono::steady_clock;

at::Device device_of(const TrainConfig& config, const distributed::Environment& environment) {
  if (config.run.device == Device::kCpu) return at::kCPU;
  if (!at::hasCUDA()) throw ConfigError("run.device is \"cuda\", but no CUDA device is visible: use \"cpu\"");
  return {at::kCUDA, static_cast<at::DeviceIndex>(environment.local_rank)};
}

fsdp::ShardContext shard_context(const TrainConfig& config, distributed::ProcessGroup& ranks,
                                 at::Device device) {
  const bool full_shard = config.parallel.strategy == Strategy::kFullShard;
  return {
      .process_group = ranks,
      .strategy = full_shard ? fsdp::Strategy::kFullShard : fsdp::Strategy::kNoShard,
      .precision = {.param_dtype = config.precision.mode == Precision::kBf16 ? at::kBFloat16 : at::kFloat},
      .device = device};
}

dataset::DatasetOptions dataset_options(const TrainConfig& config,
                                        const distributed::Environment& environment, int64_t start_position) {
  return {.shards = config.data.shards,
          .height = static_cast<int>(config.data.height),
          .width = static_cast<int>(config.data.width),
          .batch_size = static_cast<int>(config.train.batch_size),
          .rank = environment.rank,
          .world_size = environment.world_size,
          .seed = static_cast<uint64_t>(config.run.seed),
          .start_position = start_position,
          .num_threads = static_cast<int>(config.data.num_threads),
          .max_bad_fraction = config.data.max_bad_fraction};
}

/// What one rank holds while it trains. Members are in order of construction.
class Trainer {
 public:
  Trainer(const TrainConfig& config, const distributed::Environment& environment, Resume resume)
      : config_(config),
        environment_(environment),
        device_(device_of(config, environment)),
        folder_(ModelFolder::open(config.model.path)),
        transformer_(
            models::FlowTransformerConfig::from_diffusers(folder_.part("transformer") / "config.json")),
        encoder_(folder_, config, at::TensorOptions(compute_dtype()).device(device_)),
        ranks_(distributed::ProcessGroup::create(environment, device_,
                                                 std::chrono::seconds(config.distributed.timeout_seconds))),
        state_((make_trainable(), transformer_.groups()), shard_context(config, *ranks_, device_)) {
    check_shapes();
    initialize_weights();
    optimizer_ = std::make_unique<Optimizer>(state_, config.optimizer, config.ema.decay);
    checkpoints_ = std::make_unique<RunCheckpoints>(config, folder_.path, *ranks_, state_, *optimizer_);
    start_data(resume);
  }

  void run();

 private:
  at::ScalarType compute_dtype() const {
    return config_.precision.mode == Precision::kBf16 ? at::kBFloat16 : at::kFloat;
  }
  void make_trainable() {
    for (nn::Parameter* parameter : transformer_.parameters()) parameter->trainable = true;
  }
  void check_shapes() const;
  void initialize_weights();
  void start_data(Resume resume);
  telemetry::StepRecord step();
  void save(telemetry::ProgressReporter* progress);
  at::Tensor backward_pass(int64_t global_count);

  TrainConfig config_;
  distributed::Environment environment_;
  at::Device device_;
  ModelFolder folder_;
  models::FlowTransformer transformer_;
  SampleEncoder encoder_;
  std::unique_ptr<distributed::ProcessGroup> ranks_;
  fsdp::ShardedState state_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<RunCheckpoints> checkpoints_;
  std::unique_ptr<dataset::BatchLoader> loader_;
  int64_t samples_seen_ = 0;  // by all ranks
  int64_t saved_step_ = -1;   // of the newest checkpoint
};

void Trainer::check_shapes() const {
  const auto& config = transformer_.config();
  const int64_t multiple = 2 * encoder_.autoencoder_config().downsampling();
  if (config_.data.height % multiple != 0 || config_.data.width % multiple != 0) {
    throw ConfigError("data.height and data.width are {}x{}: they must be multiples of {} for {}",
                      config_.data.height, config_.data.width, multiple, config_.model.path);
  }
  if (config.in_channels != 4 * encoder_.autoencoder_config().latent_channels ||
      config.context_in_dim != encoder_.conditioner().hidden_size() ||
      config.vec_in_dim != encoder_.conditioner().pooled_size()) {
    throw ConfigError("{}: the transformer does not fit the folder's text encoders or autoencoder",
                      config_.model.path);
  }
}

void Trainer::initialize_weights() {
  if (config_.model.initialization == Initialization::kRandom) {
    state_.initialize([&](const nn::ParameterGroup& group) {
      models::initialize_random(group.parameters, static_cast<uint64_t>(config_.run.seed));
    });
    return;
  }
  state_.initialize([&](const nn::ParameterGroup&) { fill_transformer(folder_, transformer_); });
}

void Trainer::start_data(Resume resume) {
  std::optional<RunCheckpoints::Position> saved;
  if (resume == Resume::kAuto) {
    saved = checkpoints_->load_latest();
  } else {
    checkpoints_->require_none();
  }
  samples_seen_ = saved ? saved->samples_seen : 0;
  if (saved) saved_step_ = optimizer_->step_count();
  loader_ = std::make_unique<dataset::BatchLoader>(dataset_options(config_, environment_, samples_seen_));
  if (saved && saved->data_fingerprint != loader_->stats().fingerprint) {
    throw ConfigError(
        "data.shards hold other samples than when the checkpoint of step {} was written: the run cannot go "
        "on "
        "exactly; restore the shards or start a new run",
        optimizer_->step_count());
  }
}

at::Tensor Trainer::backward_pass(int64_t global_count) {
  const dataset::Batch batch = loader_->next();
  const EncodedBatch encoded = encoder_.encode(batch);
  const auto image_tokens = encoded.x0.size(1);

  std::vector<flow_matching::SampleKey> keys;
  for (size_t i = 0; i < batch.sample_ids.size(); ++i) {
    keys.push_back({static_cast<uint64_t>(batch.sample_ids[i]), static_cast<uint64_t>(batch.epochs[i])});
  }
  const double mu =
      config_.flow.shift == Shift::kResolution ? flow_matching::shift_mu({}, image_tokens) : 0.0;
  const auto noisy = flow_matching::add_noise(encoded.x0, static_cast<uint64_t>(config_.run.seed), keys,
                                              {config_.flow.timestep_mean, config_.flow.timestep_std, mu});

  const int64_t downsampling = encoder_.autoencoder_config().downsampling();
  state_.begin_forward();
  const at::Tensor velocity = transformer_.forward(
      {.img = noisy.x_t,
       .img_ids =
           flow_matching::image_ids(config_.data.height / downsampling, config_.data.width / downsampling)
               .to(device_),
       .txt = encoded.txt,
       .timesteps = noisy.t,
       .y = encoded.y,
       .guidance = transformer_.config().guidance_embed ? at::full_like(noisy.t, config_.flow.guidance)
                                                        : at::Tensor()},
      state_);
  const at::Tensor loss =
      flow_matching::flow_matching_loss(velocity, noisy.target, global_count * encoded.x0[0].numel());
  loss.backward();
  state_.end_backward();
  return loss.detach();
}

telemetry::StepRecord Trainer::step() {
  const auto start = Clock::now();
  const int64_t passes = config_.train.gradient_accumulation_steps;
  const int64_t global_samples = config_.train.batch_size * environment_.world_size * passes;
  state_.begin_step();
  at::Tensor loss = at::zeros({1}, at::TensorOptions(at::kFloat).device(device_));
  for (int64_t pass = 0; pass < passes; ++pass) loss.add_(backward_pass(global_samples));
  ranks_->all_reduce_sum(loss)->wait();

  const double grad_norm = global_grad_norm(state_, *ranks_);
  const double max_norm = config_.train.max_grad_norm;
  const double scale = max_norm > 0 && grad_norm > max_norm ? max_norm / (grad_norm + 1e-6) : 1.0;
  const double lr = learning_rate(config_, optimizer_->step_count() + 1);
  optimizer_->step(lr, scale);
  samples_seen_ += global_samples;
  return {.step = optimizer_->step_count(),
          .samples_seen = samples_seen_,
          .loss = loss.item<float>(),
          .grad_norm = grad_norm,
          .lr = lr,
          .step_seconds = std::chrono::duration<double>(Clock::now() - start).count(),
          .extras = {}};
}

void Trainer::run() {
  std::unique_ptr<telemetry::MetricsWriter> metrics;
  std::unique_ptr<telemetry::ProgressReporter> progress;
  if (environment_.rank == 0) {
    std::filesystem::create_directories(config_.run.output_dir);
    metrics = std::make_unique<telemetry::MetricsWriter>(
        std::filesystem::path(config_.run.output_dir) / "metrics.jsonl", optimizer_->step_count());
    progress = std::make_unique<telemetry::ProgressReporter>(
        std::cerr, telemetry::ProgressReporter::Options{.num_steps = config_.train.steps,
                                                        .log_every_steps = config_.run.log_every_steps,
                                                        .columns = telemetry::stderr_columns()});
  }
  while (optimizer_->step_count() < config_.train.steps) {
    const telemetry::StepRecord record = step();
    if (metrics) metrics->write(record);
    if (progress) progress->update(record);
    if (record.step % config_.checkpoint.every_steps == 0) save(progress.get());
  }
  if (saved_step_ != optimizer_->step_count()) save(progress.get());
}

void Trainer::save(telemetry::ProgressReporter* progress) {
  const std::string name = checkpoints_->save(samples_seen_, loader_->stats().fingerprint);
  saved_step_ = optimizer_->step_count();
  if (progress) progress->message("saved " + name);
}

}  // namespace

void train(const TrainConfig& config, const distributed::Environment& environment, Resume resume) {
  Trainer(config, environment, resume).run();
}

}  // namespace flowshard::training
