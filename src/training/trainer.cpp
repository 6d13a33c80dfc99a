#include "training/trainer.h"

#include <ATen/Context.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <memory>

#include "core/error.h"
#include "core/error_context.h"
#include "core/standard_streams.h"
#include "dataset/dataset.h"
#include "dataset/shard_list.h"
#include "distributed/process_group.h"
#include "fsdp/fully_shard.h"
#include "model_folder/component_files.h"
#include "model_folder/model_folder.h"
#include "storage/writable_folder.h"
#include "telemetry/metrics_writer.h"
#include "telemetry/progress_reporter.h"
#include "training/learning_rate.h"
#include "training/objective.h"
#include "training/optimizer.h"
#include "training/run_checkpoints.h"
#include "training/step_phases.h"
#include "training/stop_request.h"

namespace flowshard::training {
namespace {

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
        objective_(folder_, config, device_),
        weights_(check_input()),
        ranks_(distributed::ProcessGroup::create(environment, device_,
                                                 std::chrono::seconds(config.distributed.timeout_seconds))),
        state_((make_trainable(), transformer().groups()), shard_context(config, *ranks_, device_)) {
    initialize_weights();
    optimizer_ = std::make_unique<Optimizer>(state_, config.optimizer, config.ema.decay);
    checkpoints_ = std::make_unique<RunCheckpoints>(config, folder_.path, *ranks_, state_, *optimizer_);
    start_data(resume);
  }

  int run();

 private:
  models::FlowTransformer& transformer() { return objective_.transformer(); }
  void make_trainable() {
    for (nn::Parameter* parameter : transformer().parameters()) parameter->trainable = true;
  }
  std::optional<TransformerFiles> check_input();
  void initialize_weights();
  void start_data(Resume resume);
  dataset::Batch next_batch();
  void warn_of_bad_samples();
  void require_finite(double loss, double grad_norm) const;
  telemetry::StepRecord step();
  void save(telemetry::ProgressReporter* progress);
  void train_to_end_or_signal(telemetry::MetricsWriter* metrics, telemetry::ProgressReporter* progress);

  TrainConfig config_;
  distributed::Environment environment_;
  at::Device device_;
  ModelFolder folder_;
  Objective objective_;
  std::optional<TransformerFiles> weights_;  // that a pretrained transformer starts from, until it has
  std::unique_ptr<distributed::ProcessGroup> ranks_;
  fsdp::ShardedState state_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<RunCheckpoints> checkpoints_;
  std::unique_ptr<dataset::BatchLoader> loader_;
  StepPhases phases_;
  int64_t samples_seen_ = 0;  // by all ranks
  int64_t saved_step_ = -1;   // of the newest checkpoint
  size_t num_problems_named_ = 0;
  int stop_signal_ = 0;  // not 0 on any rank once it is not 0 on one
};

// What can be known without the other ranks and without work.
std::optional<TransformerFiles> Trainer::check_input() {
  dataset::require_shards(dataset::expand_shards(config_.data.shards));
  std::optional<TransformerFiles> weights;
  if (config_.model.initialization == Initialization::kPretrained) {
    weights = TransformerFiles::open(folder_.part("transformer"));
    weights->fill(transformer());  // nothing is materialized yet: this only checks
  }
  storage::require_writable_folder(config_.run.output_dir, "run.output_dir");
  return weights;
}

void Trainer::initialize_weights() {
  state_.initialize([&](const nn::ParameterGroup& group) {
    if (weights_) {
      weights_->fill(transformer());  // the group that is materialized
    } else {
      models::initialize_random(group.parameters, static_cast<uint64_t>(config_.run.seed));
    }
  });
  weights_.reset();
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
  warn_of_bad_samples();
  if (saved && saved->data_fingerprint != loader_->stats().fingerprint) {
    throw ConfigError(
        "data.shards hold other samples than when the checkpoint of step {} was written: the run cannot go "
        "on "
        "exactly; restore the shards or start a new run",
        optimizer_->step_count());
  }
}

void Trainer::warn_of_bad_samples() {
  const dataset::DatasetStats stats = loader_->stats();
  if (stats.problems.size() == num_problems_named_) return;
  std::string text;
  for (; num_problems_named_ < stats.problems.size(); ++num_problems_named_) {
    text += fmt::format("flowshard train: warning: {}\n", stats.problems[num_problems_named_]);
  }
  text += fmt::format("flowshard train: warning: {} bad samples of {} so far", stats.num_bad_samples,
                      stats.num_samples);
  print_line(text);
}

dataset::Batch Trainer::next_batch() {
  phases_.begin(kLoadingPhase);
  dataset::Batch batch = loader_->next();
  warn_of_bad_samples();
  return batch;
}

// Every rank holds the same two numbers, so all of them stop here, before the weights are touched.
void Trainer::require_finite(double loss, double grad_norm) const {
  if (std::isfinite(loss) && std::isfinite(grad_norm)) return;
  throw DataError(
      "the loss is {} and the gradient norm {}: training has diverged, and nothing of this step is kept; go "
      "on "
      "from the last checkpoint with a lower optimizer.lr (it is {}), a longer schedule.warmup_steps or a "
      "smaller train.max_grad_norm",
      loss, grad_norm, learning_rate(config_, optimizer_->step_count() + 1));
}

telemetry::StepRecord Trainer::step() {
  const int64_t passes = config_.train.gradient_accumulation_steps;
  const int64_t global_samples = config_.train.batch_size * environment_.world_size * passes;
  state_.begin_step();
  at::Tensor loss = at::zeros({1}, at::TensorOptions(at::kFloat).device(device_));
  for (int64_t pass = 0; pass < passes; ++pass) {
    loss.add_(objective_.backward_pass(next_batch(), global_samples, state_, phases_));
  }
  phases_.begin("gradient norm");
  // One collective for both: ranks must agree on the step to stop at.
  const int own_signal = StopRequest::signal();
  const at::Tensor sums = at::cat({loss, at::full({1}, own_signal == 0 ? 0.0 : 1.0, loss.options())});
  ranks_->all_reduce_sum(sums)->wait();
  const float mean_loss = sums[0].item<float>();
  if (sums[1].item<float>() > 0) stop_signal_ = own_signal != 0 ? own_signal : SIGTERM;
  const double grad_norm = global_grad_norm(state_, *ranks_);
  require_finite(mean_loss, grad_norm);
  const double max_norm = config_.train.max_grad_norm;
  const double scale = max_norm > 0 && grad_norm > max_norm ? max_norm / (grad_norm + 1e-6) : 1.0;
  const double lr = learning_rate(config_, optimizer_->step_count() + 1);
  phases_.begin("optimizer step");
  optimizer_->step(lr, scale);
  samples_seen_ += global_samples;
  return {.step = optimizer_->step_count(),
          .samples_seen = samples_seen_,
          .loss = mean_loss,
          .grad_norm = grad_norm,
          .lr = lr,
          .step_seconds = phases_.step_seconds(),
          .extras = {{"data_seconds", phases_.seconds(kLoadingPhase)},
                     {"encode_seconds", phases_.seconds(kEncodingPhase)}}};
}

int Trainer::run() {
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
  try {
    const StopRequest stop_request;
    train_to_end_or_signal(metrics.get(), progress.get());
  } catch (const Error&) {
    rethrow_within(phases_.where());
  }
  if (stop_signal_ != 0 && progress) {
    progress->message(fmt::format("stopped by signal {}: go on with --resume auto", stop_signal_));
  }
  return stop_signal_;
}

void Trainer::train_to_end_or_signal(telemetry::MetricsWriter* metrics,
                                     telemetry::ProgressReporter* progress) {
  while (optimizer_->step_count() < config_.train.steps && stop_signal_ == 0) {
    phases_.begin_step(optimizer_->step_count() + 1);
    const telemetry::StepRecord record = step();
    phases_.begin("metrics");
    if (metrics) metrics->write(record);
    if (progress) progress->update(record);
    if (record.step % config_.checkpoint.every_steps == 0) save(progress);
  }
  if (saved_step_ != optimizer_->step_count()) save(progress);
}

void Trainer::save(telemetry::ProgressReporter* progress) {
  phases_.begin("saving a checkpoint");
  const std::string name = checkpoints_->save(samples_seen_, loader_->stats().fingerprint);
  saved_step_ = optimizer_->step_count();
  if (progress) progress->message("saved " + name);
}

}  // namespace

int train(const TrainConfig& config, const distributed::Environment& environment, Resume resume) {
  return Trainer(config, environment, resume).run();
}

}  // namespace flowshard::training
