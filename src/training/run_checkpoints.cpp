#include "training/run_checkpoints.h"

#include <fmt/format.h>

#include <cstdio>
#include <random>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/training_checkpoint.h"
#include "core/error.h"
#include "core/standard_streams.h"

namespace flowshard::training {
namespace {

namespace fs = std::filesystem;
using checkpoint::Progress;

constexpr const char* kCheckpointsFolder = "checkpoints";

checkpoint::GroupLayout layout_of(const fsdp::ParamGroup& group) {
  checkpoint::GroupLayout layout{
      .name = group.name(), .entries = {}, .numel = group.numel(), .padded_numel = group.padded_numel()};
  for (size_t i = 0; i < group.parameters().size(); ++i) {
    layout.entries.push_back({group.parameters()[i]->name, group.parameters()[i]->shape, group.offsets()[i]});
  }
  return layout;
}

/// A name that no other run has: 64 random bits, chosen by rank 0.
std::string new_run_id(distributed::ProcessGroup& ranks, at::Device device) {
  std::random_device random;
  const at::Tensor bits =
      at::tensor({static_cast<int64_t>(random()), static_cast<int64_t>(random())}).to(device);
  ranks.broadcast(bits, 0)->wait();
  return fmt::format("{:08x}{:08x}", bits[0].item<int64_t>(), bits[1].item<int64_t>());
}

/// What is in the object `extra` of state.json.
struct Extra {
  int64_t skipped_steps = 0;
  uint64_t data_fingerprint = 0;
  std::optional<double> loss_scale;  // of runs that have one
  int64_t clean_steps = 0;
  std::string started_from;
};

Extra extra_of(const checkpoint::TrainingState& state, const fs::path& path) {
  const nlohmann::json& json = state.extra;
  try {
    Extra extra{.skipped_steps = json.value("skipped_steps", int64_t{0}),
                .data_fingerprint = json.value("data_fingerprint", uint64_t{0}),
                .loss_scale = {},
                .clean_steps = json.value("clean_steps", int64_t{0}),
                .started_from = json.value("started_from", "")};
    if (json.contains("loss_scale")) extra.loss_scale = json.at("loss_scale").get<double>();
    if (extra.skipped_steps >= 0 && extra.skipped_steps <= state.step) return extra;
    throw CheckpointError("{}: {} of its {} steps were skipped", path.string(), extra.skipped_steps,
                          state.step);
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError("{}: its {} is not that of a training run: {}", path.string(),
                          checkpoint::kStateName, error.what());
  }
}

/// Whether the newest of the checkpoints in `folder` whose state can be read is from a run that was started
/// from `path`.
bool was_started_from(const fs::path& folder, const fs::path& path) {
  for (const auto& published : checkpoint::published_checkpoints(folder)) {
    try {
      const auto state = checkpoint::read_training_state(published.path / checkpoint::kStateName);
      return extra_of(state, published.path).started_from == fs::weakly_canonical(path).string();
    } catch (const CheckpointError&) {  // load_first() will say what is wrong with it
    }
  }
  return false;
}

}  // namespace

RunCheckpoints::RunCheckpoints(const TrainConfig& config, const std::filesystem::path& base_model,
                               distributed::ProcessGroup& ranks, at::Device device,
                               const fsdp::ShardedState& state, Optimizer& optimizer, LossScale& loss_scale)
    : config_(config),
      base_model_(std::filesystem::absolute(base_model)),
      folder_(fs::path(config.run.output_dir) / kCheckpointsFolder),
      ranks_(ranks),
      device_(device),
      state_(state),
      optimizer_(optimizer),
      loss_scale_(loss_scale),
      copies_(device) {}

checkpoint::GroupShards RunCheckpoints::shards_of(size_t group) const {
  const fsdp::ParamGroup& parameters = *state_.groups()[group];
  checkpoint::GroupShards shards{.layout = layout_of(parameters), .states = optimizer_.states(group)};
  shards.states.insert(shards.states.begin(), {"model", parameters.master_shard()});
  return shards;
}

Progress RunCheckpoints::agree(Progress own) {
  const at::Tensor own_counts = at::zeros({4}, at::kFloat);
  own_counts[static_cast<int64_t>(own)] = 1;
  const at::Tensor counts = own_counts.to(device_);
  ranks_.all_reduce_sum(counts)->wait();
  const at::Tensor ranks_at = counts.cpu();
  for (const Progress progress : {Progress::kLate, Progress::kRunning, Progress::kFailed}) {
    if (ranks_at[static_cast<int64_t>(progress)].item<float>() > 0) return progress;
  }
  return Progress::kDone;
}

void RunCheckpoints::start_save(int64_t samples_seen, uint64_t data_fingerprint) {
  if (run_id_.empty()) run_id_ = new_run_id(ranks_, device_);
  checkpoint::TrainingState state{.step = optimizer_.step_count(),
                                  .samples_seen = samples_seen,
                                  .run_id = run_id_,
                                  .config = to_toml(config_),
                                  .model_path = base_model_.string(),
                                  .extra = {{"data_fingerprint", data_fingerprint},
                                            {"skipped_steps", optimizer_.skipped_steps()},
                                            {"started_from", started_from_}}};
  if (loss_scale_.needed()) {
    state.extra["loss_scale"] = loss_scale_.factor();
    state.extra["clean_steps"] = loss_scale_.clean_steps();
  }
  const size_t num_groups = state_.groups().size();
  std::vector<checkpoint::GroupShards> groups;
  std::function<void()> arrived;
  if (copies_shards()) {
    reserve_copies();
    groups = copies_.copy(
        num_groups, [this](size_t group) { return shards_of(group); }, decodes_on_gpu());
    arrived = copies_.arrived();
  } else {
    for (size_t i = 0; i < num_groups; ++i) groups.push_back(shards_of(i));
  }
  save_.emplace(checkpoint::SaveOptions{.folder = folder_,
                                        .rank = ranks_.rank(),
                                        .num_shards = state_.groups()[0]->shard_count(),
                                        .keep = config_.checkpoint.keep,
                                        .before_reading = arrived},
                std::move(groups), state);
}

bool RunCheckpoints::copies_shards() const {
  return (config_.checkpoint.async || decodes_on_gpu()) && ranks_.rank() < state_.groups()[0]->shard_count();
}

bool RunCheckpoints::decodes_on_gpu() const {
  return config_.optimizer.state_dtype == StateDtype::kInt8 && !device_.is_cpu();
}

void RunCheckpoints::reserve_copies() {
  if (!copies_shards()) return;
  copies_.reserve(state_.groups().size(), [this](size_t group) { return shards_of(group); });
}

std::optional<std::string> RunCheckpoints::poll_save() {
  if (!save_->poll([this](Progress own) { return agree(own); })) return {};
  std::string name = save_->name();
  save_.reset();
  return name;
}

std::string RunCheckpoints::finish_save() {
  save_->wait([this](Progress own) { return agree(own); });
  std::string name = save_->name();
  save_.reset();
  return name;
}

std::vector<fs::path> RunCheckpoints::checkpoints_in(const fs::path& folder) {
  std::vector<int64_t> steps;
  if (ranks_.rank() == 0) {
    for (const auto& published : checkpoint::published_checkpoints(folder)) steps.push_back(published.step);
  }
  const at::Tensor size = at::tensor({static_cast<int64_t>(steps.size())}).to(device_);
  ranks_.broadcast(size, 0)->wait();
  steps.resize(static_cast<size_t>(size.item<int64_t>()));
  std::vector<fs::path> paths;
  if (steps.empty()) return paths;
  const at::Tensor shared = at::tensor(steps).to(device_);
  ranks_.broadcast(shared, 0)->wait();
  const at::Tensor host = shared.cpu();
  for (int64_t i = 0; i < host.numel(); ++i) {
    paths.push_back(folder / checkpoint::step_folder_name(host[i].item<int64_t>()));
  }
  return paths;
}

std::optional<RunCheckpoints::Position> RunCheckpoints::load_latest() {
  const std::vector<fs::path> paths = checkpoints_in(folder_);
  return paths.empty() ? std::nullopt : std::optional(load_first(paths));
}

RunCheckpoints::Position RunCheckpoints::load_from(const fs::path& path) {
  const std::vector<fs::path> own = checkpoints_in(folder_);
  if (was_started_from(folder_, path)) return load_first(own);
  const bool is_one = checkpoint::TrainingCheckpoint::is_checkpoint(path);
  const std::vector<fs::path> sources =
      is_one ? std::vector{path} : checkpoints_in(path / kCheckpointsFolder);
  if (!own.empty() && !fs::equivalent(own[0], sources.at(0))) {
    throw ConfigError(
        "{} is not from a run that was started from {}: give run.output_dir another folder, or go on from it "
        "with --resume auto",
        own[0].string(), path.string());
  }
  Position position = load_first(sources);
  position.is_own = !own.empty();
  if (!position.is_own) run_id_.clear();
  started_from_ = fs::weakly_canonical(path).string();
  return position;
}

void RunCheckpoints::require_checkpoint(const fs::path& path, const fs::path& output) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored) && (checkpoint::TrainingCheckpoint::is_checkpoint(path) ||
                                          checkpoint::latest_checkpoint(path / kCheckpointsFolder))) {
    return;
  }
  if (was_started_from(output / kCheckpointsFolder, path)) return;
  throw ConfigError(
      "--resume: {} is neither a complete checkpoint nor the output folder of a run that has one (or name "
      "auto "
      "or never)",
      path.string());
}

RunCheckpoints::Position RunCheckpoints::load_first(const std::vector<fs::path>& paths) {
  std::string newest_problem;
  for (const fs::path& path : paths) {
    std::optional<Position> position;
    std::string problem;
    try {
      position = load(path);
    } catch (const Error& error) {
      problem = error.what();
    }
    if (agree(position ? Progress::kDone : Progress::kFailed) == Progress::kDone) return *position;
    if (problem.empty()) problem = fmt::format("{}: another rank cannot read it", path.string());
    if (newest_problem.empty()) newest_problem = problem;
    if (path != paths.back()) print_line("flowshard train: warning: skipped a checkpoint: {}", problem);
  }
  if (paths.size() == 1) throw CheckpointError("{}", newest_problem);
  throw CheckpointError("none of the {} checkpoints in {} can be read; the newest: {}", paths.size(),
                        paths[0].parent_path().string(), newest_problem);
}

RunCheckpoints::Position RunCheckpoints::load(const fs::path& path) {
  const auto saved = checkpoint::TrainingCheckpoint::open(path);
  saved.verify_checksums(ranks_.rank(), ranks_.world_size());
  std::vector<checkpoint::GroupLayout::Entry> wanted;
  for (const auto& group : state_.groups()) {
    const auto entries = layout_of(*group).entries;
    wanted.insert(wanted.end(), entries.begin(), entries.end());
  }
  saved.require_parameters(wanted);
  const Extra extra = extra_of(saved.state(), path);

  at::NoGradGuard no_grad;
  for (size_t i = 0; i < state_.groups().size(); ++i) {
    const fsdp::ParamGroup& group = *state_.groups()[i];
    const auto read = [&](const char* name) {
      return saved.read_flat(name, layout_of(group), group.shard_begin(),
                             group.shard_begin() + group.shard_numel());
    };
    group.master_shard().copy_(read("model"));
    optimizer_.restore(i, "exp_avg", read("exp_avg"));
    optimizer_.restore(i, "exp_avg_sq", read("exp_avg_sq"));
    if (!optimizer_.keeps_average()) continue;
    const bool has_ema = saved.has("ema", group.parameters()[0]->name);
    optimizer_.restore(i, "ema", read(has_ema ? "ema" : "model"));
  }
  optimizer_.restore_counts(saved.state().step, extra.skipped_steps);
  if (extra.loss_scale) loss_scale_.restore(*extra.loss_scale, extra.clean_steps);
  run_id_ = saved.state().run_id;
  started_from_ = extra.started_from;
  return {.samples_seen = saved.state().samples_seen, .data_fingerprint = extra.data_fingerprint};
}

void RunCheckpoints::require_storable(const fs::path& path, std::string_view setting) {
  try {
    [[maybe_unused]] const std::string text = nlohmann::json(path.string()).dump();
  } catch (const nlohmann::json::type_error&) {
    throw ConfigError("{}: the path {} is not UTF-8, and a checkpoint can hold no other: rename the folder",
                      setting, path.string());
  }
}

void RunCheckpoints::require_none(const fs::path& output) {
  const auto newest = checkpoint::latest_checkpoint(output / kCheckpointsFolder);
  if (newest) {
    throw ConfigError(
        "{} holds a checkpoint of an earlier run: go on from it with --resume auto, or give run.output_dir "
        "another folder",
        newest->string());
  }
}

}  // namespace flowshard::training
