#include "training/trainer.h"

#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <memory>

#include "core/error.h"
#include "core/error_context.h"
#include "core/standard_streams.h"
#include "dataset/shard_list.h"
#include "distributed/process_group.h"
#include "fsdp/fully_shard.h"
#include "model_folder/component_files.h"
#include "model_folder/model_folder.h"
#include "storage/writable_folder.h"
#include "telemetry/metrics_writer.h"
#include "telemetry/progress_reporter.h"
#include "training/batch_source.h"
#include "training/gradient_norm.h"
#include "training/learning_rate.h"
#include "training/loss_scale.h"
#include "training/memory_check.h"
#include "training/model_sizes.h"
#include "training/objective.h"
#include "training/optimizer.h"
#include "training/out_of_memory.h"
#include "training/parallelize.h"
#include "training/precision.h"
#include "training/run_checkpoints.h"
#include "training/save_request.h"
#include "training/step_phases.h"
#include "training/stop_request.h"
#include "training/validation.h"

namespace flowshard::training {
namespace {

/// What one rank holds while it trains. Members are in order of construction.
class Trainer {
 public:
  Trainer(const TrainConfig& config, const distributed::Environment& environment, const Resume& resume)
      : config_(config),
        environment_(environment),
        save_request_(environment.rank == 0 ? std::filesystem::path(config.run.output_dir) / "save" : ""),
        device_(device_of(config, environment)),
        folder_(ModelFolder::open(config.model.path)),
        objective_(folder_, config, device_),
        weights_(check_input(resume)),
        validation_(config, environment),
        ranks_(connect_ranks(config, environment, device_)),
        mesh_(*ranks_, shard_size(config, environment)),
        host_memory_(device_, host_budget(config, environment)),
        state_((make_trainable(), transformer().groups()),
               shard_context(config, mesh_, device_, host_memory_)),
        loss_scale_(precision_of(config).needs_loss_scale()),
        phases_(config.run.log_phases
                    ? fmt::format("rank {} of {}: ", environment.rank, environment.world_size)
                    : "") {
    initialize_weights();
    optimizer_ = std::make_unique<Optimizer>(state_, config, device_,
                                             config.memory.offload_optimizer ? &host_memory_ : nullptr);
    checkpoints_ = std::make_unique<RunCheckpoints>(config, folder_.path, *ranks_, device_, state_,
                                                    *optimizer_, loss_scale_);
    start_data(resume);
    if (config.checkpoint.async) checkpoints_->reserve_copies();
  }

  int run();

 private:
  models::FlowTransformer& transformer() { return objective_.transformer(); }
  void make_trainable() {
    for (nn::Parameter* parameter : transformer().parameters()) parameter->trainable = true;
  }
  std::optional<TransformerFiles> check_input(const Resume& resume);
  void initialize_weights();
  void start_data(const Resume& resume);
  void update(double grad_norm);
  void skip_step(double loss, double grad_norm);
  telemetry::StepRecord step();
  int signal_of_job();
  telemetry::StepRecord record(double loss, double grad_norm) const;
  void validate(telemetry::StepRecord& record, telemetry::ProgressReporter* progress);
  void compare_memory(telemetry::ProgressReporter& progress);
  void start_save(telemetry::ProgressReporter* progress);
  void look_after_save(telemetry::ProgressReporter* progress, bool until_done);
  void train_to_end_or_signal(telemetry::MetricsWriter* metrics, telemetry::ProgressReporter* progress);

  TrainConfig config_;
  distributed::Environment environment_;
  SaveRequest save_request_;
  at::Device device_;
  ModelFolder folder_;
  Objective objective_;
  std::optional<TransformerFiles> weights_;  // that a pretrained transformer starts from, until it has
  Validation validation_;
  std::unique_ptr<distributed::ProcessGroup> ranks_;
  distributed::DeviceMesh mesh_;
  fsdp::HostMemory host_memory_;
  fsdp::ShardedState state_;
  LossScale loss_scale_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<RunCheckpoints> checkpoints_;
  std::unique_ptr<BatchSource> batches_;
  StepPhases phases_;
  int64_t samples_seen_ = 0;  // by all ranks
  int64_t saved_step_ = -1;   // of the newest checkpoint
  bool has_compared_memory_ = false;
  int64_t skipped_in_a_row_ = 0;
  int stop_signal_ = 0;                // not 0 on any rank once it is not 0 on one
  bool save_requested_ = false;        // of any rank in this step
  bool save_answers_request_ = false;  // the save in flight
};

// What can be known without the other ranks and without work.
std::optional<TransformerFiles> Trainer::check_input(const Resume& resume) {
  RunCheckpoints::require_storable(std::filesystem::absolute(folder_.path), "model.path");
  if (resume.from == Resume::From::kCheckpoint) {
    RunCheckpoints::require_checkpoint(resume.path, config_.run.output_dir);
    RunCheckpoints::require_storable(std::filesystem::weakly_canonical(resume.path), "--resume");
  }
  dataset::require_shards(dataset::expand_shards(config_.data.shards));
  std::optional<TransformerFiles> weights;
  if (config_.model.initialization == Initialization::kPretrained) {
    weights = TransformerFiles::open(folder_.part("transformer"));
    weights->fill(transformer());  // nothing is materialized yet: this only checks
  }
  const std::filesystem::path output = config_.run.output_dir;
  storage::require_writable_folder(output, "run.output_dir");
  storage::require_writable_folder(output / "checkpoints", "run.output_dir");
  storage::require_writable_file(output / "metrics.jsonl", "run.output_dir");
  if (resume.from == Resume::From::kNothing) RunCheckpoints::require_none(config_.run.output_dir);
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

void Trainer::start_data(const Resume& resume) {
  std::optional<RunCheckpoints::Position> saved;
  if (resume.from == Resume::From::kOutput) {
    saved = checkpoints_->load_latest();
  } else if (resume.from == Resume::From::kCheckpoint) {
    saved = checkpoints_->load_from(resume.path);
  }
  samples_seen_ = saved ? saved->samples_seen : 0;
  if (saved && saved->is_own) saved_step_ = optimizer_->step_count();
  dataset::DatasetOptions options = dataset_options(config_, environment_);
  options.start_position = samples_seen_;
  batches_ = std::make_unique<BatchSource>(std::move(options));
  if (saved && saved->data_fingerprint != batches_->stats().fingerprint) {
    throw ConfigError(
        "data.shards hold other samples than when the checkpoint of step {} was written: the run cannot go "
        "on "
        "exactly; restore the shards or start a new run",
        optimizer_->step_count());
  }
}

void Trainer::update(double grad_norm) {
  skipped_in_a_row_ = 0;
  const double max_norm = config_.train.max_grad_norm;
  const double clipping = max_norm > 0 && grad_norm > max_norm ? max_norm / (grad_norm + 1e-6) : 1.0;
  checkpoints_->wait_for_copies();
  optimizer_->step(learning_rate(config_, optimizer_->step_count() + 1), clipping / loss_scale_.factor());
  loss_scale_.step_was_clean();
}

// Every rank holds the same two numbers, so all of them skip, or stop, together.
void Trainer::skip_step(double loss, double grad_norm) {
  optimizer_->skip_step();
  const double factor = loss_scale_.factor();
  const std::string name = first_non_finite(state_, mesh_);
  const std::string what = name.empty() ? fmt::format("the loss is {}", loss)
                                        : fmt::format("the gradient of {} is not finite", name);
  if (loss_scale_.back_off()) {
    if (environment_.rank == 0) {
      print_line("flowshard train: step {} skipped: {} with a loss scale of {}, which is halved",
                 optimizer_->step_count(), what, factor);
    }
    return;
  }
  if (++skipped_in_a_row_ >= config_.train.max_skipped_steps) {
    throw DataError(
        "{} steps in a row were skipped; in this one {} (loss {}, gradient norm {}): training has diverged, "
        "and "
        "nothing of these steps is kept; go on from the last checkpoint with a lower optimizer.lr (it is "
        "{}), a "
        "longer schedule.warmup_steps or a smaller train.max_grad_norm",
        skipped_in_a_row_, what, loss, grad_norm, learning_rate(config_, optimizer_->step_count()));
  }
  if (environment_.rank == 0) {
    print_line("flowshard train: warning: step {} skipped: {} (loss {}, gradient norm {}); {} skipped so far",
               optimizer_->step_count(), what, loss, grad_norm, optimizer_->skipped_steps());
  }
}

telemetry::StepRecord Trainer::step() {
  const int64_t passes = config_.train.gradient_accumulation_steps;
  const int64_t global_samples = config_.train.batch_size * environment_.world_size * passes;
  state_.begin_step();
  at::Tensor loss = at::zeros({1}, at::TensorOptions(at::kFloat).device(device_));
  for (int64_t pass = 0; pass < passes; ++pass) {
    phases_.begin(kLoadingPhase);
    loss.add_(objective_.backward_pass(batches_->next(),
                                       {.global_samples = global_samples,
                                        .loss_scale = loss_scale_.factor(),
                                        .is_last_of_step = pass == passes - 1},
                                       state_, phases_));
  }
  phases_.begin("gradient norm");
  // One collective for all: ranks must agree on the step to stop at or to save.
  const at::Tensor sums =
      at::cat({loss, at::full({1}, StopRequest::signal() == 0 ? 0.0 : 1.0, loss.options()),
               at::full({1}, save_request_.take() ? 1.0 : 0.0, loss.options())});
  ranks_->all_reduce_sum(sums)->wait();
  const float mean_loss = sums[0].item<float>();
  if (sums[1].item<float>() > 0) stop_signal_ = signal_of_job();
  save_requested_ = sums[2].item<float>() > 0;
  const double grad_norm = global_grad_norm(state_, mesh_) / loss_scale_.factor();
  phases_.begin("optimizer step");
  if (std::isfinite(mean_loss) && std::isfinite(grad_norm)) {
    update(grad_norm);
  } else {
    skip_step(mean_loss, grad_norm);
  }
  samples_seen_ += global_samples;
  return record(mean_loss, grad_norm);
}

// What all ranks end by once one of them was told to: SIGTERM if any was told that. Every rank calls it.
int Trainer::signal_of_job() {
  const at::Tensor terminated =
      at::full({1}, StopRequest::signal() == SIGTERM ? 1.0 : 0.0, at::TensorOptions(device_));
  ranks_->all_reduce_sum(terminated)->wait();
  return terminated.item<float>() > 0 ? SIGTERM : SIGINT;
}

telemetry::StepRecord Trainer::record(double loss, double grad_norm) const {
  return {.step = optimizer_->step_count(),
          .samples_seen = samples_seen_,
          .loss = loss,
          .grad_norm = grad_norm,
          .lr = learning_rate(config_, optimizer_->step_count()),
          .step_seconds = phases_.step_seconds(),
          .extras = {{"data_seconds", phases_.seconds(kLoadingPhase)},
                     {"encode_seconds", phases_.seconds(kEncodingPhase)},
                     {"skipped_steps", static_cast<double>(optimizer_->skipped_steps())},
                     {"loss_scale", loss_scale_.factor()},
                     {"epoch", static_cast<double>(samples_seen_) /
                                   static_cast<double>(batches_->stats().num_samples)}}};
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
  } catch (const std::exception&) {
    rethrow_out_of_memory(phases_.where(), [&] { return advise(config_, environment_); });
    throw;
  }
  if (stop_signal_ != 0 && progress) {
    progress->message(fmt::format("stopped by signal {}: go on with --resume auto", stop_signal_));
  }
  return stop_signal_;
}

void Trainer::train_to_end_or_signal(telemetry::MetricsWriter* metrics,
                                     telemetry::ProgressReporter* progress) {
  if (progress && saved_step_ >= config_.train.steps) {
    progress->message(fmt::format("nothing to do: step {} is saved, and train.steps is {}", saved_step_,
                                  config_.train.steps));
  }
  while (optimizer_->step_count() < config_.train.steps && stop_signal_ == 0) {
    phases_.begin_step(optimizer_->step_count() + 1);
    if (!config_.checkpoint.async) look_after_save(progress, true);
    telemetry::StepRecord record = step();
    record.step_seconds -= phases_.seconds(kSavingPhase);
    // Behind the step: what is asked before it would wait until the copies of the shards have left the GPU.
    look_after_save(progress, false);
    if (save_requested_ || record.step % config_.checkpoint.every_steps == 0) start_save(progress);
    record.extras.emplace_back("save_seconds", phases_.seconds(kSavingPhase));
    if (validation_.is_due(record.step) && stop_signal_ == 0) validate(record, progress);
    // Before the checkpoint can be published: a resume finds the records of all steps up to its own.
    phases_.begin("metrics");
    if (metrics) metrics->write(record);
    if (progress) progress->update(record);
    if (progress && !device_.is_cpu() && !has_compared_memory_) compare_memory(*progress);
  }
  if (saved_step_ != optimizer_->step_count()) start_save(progress);
  look_after_save(progress, true);
}

// Beside the files of a save that this step has started.
void Trainer::validate(telemetry::StepRecord& record, telemetry::ProgressReporter* progress) {
  phases_.begin(kValidationPhase);
  const std::optional<ValidationLoss> loss = validation_.run(objective_, state_, *ranks_, device_);
  if (!loss) {
    stop_signal_ = signal_of_job();
    return;
  }
  record.extras.emplace_back("validation_loss", loss->mean);
  for (size_t i = 0; i < loss->at_times.size(); ++i) {
    record.extras.emplace_back(fmt::format("validation_loss_{}", i), loss->at_times[i]);
  }
  record.extras.emplace_back("validation_seconds", phases_.seconds(kValidationPhase));
  if (progress) progress->message(fmt::format("step {}: validation loss {:.6f}", record.step, loss->mean));
}

// The first step has needed all that later ones will.
void Trainer::compare_memory(telemetry::ProgressReporter& progress) {
  has_compared_memory_ = true;
  const auto estimate = estimate_memory(config_, model_sizes(folder_), job_size(environment_));
  progress.message(memory_beside_estimate(estimate, device_));
}

// One save is in flight at a time.
void Trainer::start_save(telemetry::ProgressReporter* progress) {
  look_after_save(progress, true);
  phases_.begin(kSavingPhase);
  save_answers_request_ = save_requested_;
  checkpoints_->start_save(samples_seen_, batches_->stats().fingerprint);
  saved_step_ = optimizer_->step_count();
}

// Asks how far the save in flight is, if there is one, or waits for its end.
void Trainer::look_after_save(telemetry::ProgressReporter* progress, bool until_done) {
  if (!checkpoints_->is_saving()) return;
  phases_.begin(kSavingPhase);
  const std::optional<std::string> name =
      until_done ? checkpoints_->finish_save() : checkpoints_->poll_save();
  if (!name) return;
  if (save_answers_request_) save_request_.done();
  if (progress) progress->message("saved " + *name);
}

}  // namespace

int train(const TrainConfig& config, const distributed::Environment& environment, const Resume& resume) {
  std::unique_ptr<Trainer> trainer;
  try {
    trainer = std::make_unique<Trainer>(config, environment, resume);
  } catch (const std::exception&) {
    rethrow_out_of_memory("before the first step (loading weights)",
                          [&] { return advise(config, environment); });
    throw;
  }
  return trainer->run();
}

}  // namespace flowshard::training
