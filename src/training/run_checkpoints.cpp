#include "training/run_checkpoints.h"

#include <fmt/format.h>

#include <cstdio>
#include <random>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/save_training_checkpoint.h"
#include "checkpoint/training_checkpoint.h"
#include "core/error.h"
#include "core/standard_streams.h"

namespace flowshard::training {
namespace {

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

}  // namespace

RunCheckpoints::RunCheckpoints(const TrainConfig& config, const std::filesystem::path& base_model,
                               distributed::ProcessGroup& ranks, const fsdp::ShardedState& state,
                               Optimizer& optimizer, LossScale& loss_scale)
    : config_(config),
      base_model_(std::filesystem::absolute(base_model)),
      folder_(std::filesystem::path(config.run.output_dir) / "checkpoints"),
      ranks_(ranks),
      state_(state),
      optimizer_(optimizer),
      loss_scale_(loss_scale) {}

at::Device RunCheckpoints::device() const { return state_.groups()[0]->master_shard().device(); }

bool RunCheckpoints::agree(bool ok) {
  const at::Tensor failures = at::tensor({ok ? 0.0f : 1.0f}).to(device());
  ranks_.all_reduce_sum(failures)->wait();
  return failures.item<float>() == 0;
}

std::string RunCheckpoints::save(int64_t samples_seen, uint64_t data_fingerprint) {
  if (run_id_.empty()) run_id_ = new_run_id(ranks_, device());
  std::vector<checkpoint::GroupShards> groups;
  for (size_t i = 0; i < state_.groups().size(); ++i) {
    const fsdp::ParamGroup& group = *state_.groups()[i];
    groups.push_back({.layout = layout_of(group), .states = optimizer_.states(i)});
    auto& states = groups.back().states;
    states.insert(states.begin(), {"model", group.master_shard()});
  }
  const checkpoint::TrainingState state{.step = optimizer_.step_count(),
                                        .samples_seen = samples_seen,
                                        .run_id = run_id_,
                                        .config = to_toml(config_),
                                        .model_path = base_model_.string(),
                                        .extra = {{"data_fingerprint", data_fingerprint},
                                                  {"skipped_steps", optimizer_.skipped_steps()},
                                                  {"loss_scale", loss_scale_.factor()},
                                                  {"clean_steps", loss_scale_.clean_steps()}}};
  checkpoint::save_training_checkpoint({.folder = folder_,
                                        .rank = ranks_.rank(),
                                        .num_shards = state_.groups()[0]->shard_count(),
                                        .keep = config_.checkpoint.keep},
                                       groups, state, [this](bool ok) { return agree(ok); });
  return checkpoint::step_folder_name(state.step);
}

std::vector<int64_t> RunCheckpoints::published_steps() {
  std::vector<int64_t> steps;
  if (ranks_.rank() == 0) {
    for (const auto& published : checkpoint::published_checkpoints(folder_)) steps.push_back(published.step);
  }
  const at::Tensor size = at::tensor({static_cast<int64_t>(steps.size())}).to(device());
  ranks_.broadcast(size, 0)->wait();
  steps.resize(static_cast<size_t>(size.item<int64_t>()));
  if (steps.empty()) return steps;
  const at::Tensor shared = at::tensor(steps).to(device());
  ranks_.broadcast(shared, 0)->wait();
  const at::Tensor host = shared.cpu();
  return {host.data_ptr<int64_t>(), host.data_ptr<int64_t>() + host.numel()};
}

std::optional<RunCheckpoints::Position> RunCheckpoints::load_latest() {
  const std::vector<int64_t> steps = published_steps();
  std::string newest_problem;
  for (const int64_t step : steps) {
    const std::filesystem::path path = folder_ / checkpoint::step_folder_name(step);
    std::optional<Position> position;
    std::string problem;
    try {
      position = load(path);
    } catch (const Error& error) {
      problem = error.what();
    }
    if (agree(position.has_value())) return position;
    if (problem.empty()) problem = fmt::format("{}: another rank cannot read it", path.string());
    if (newest_problem.empty()) newest_problem = problem;
    if (step != steps.back()) print_line("flowshard train: warning: skipped a checkpoint: {}", problem);
  }
  if (steps.empty()) return {};
  throw CheckpointError("none of the {} checkpoints in {} can be read; the newest: {}", steps.size(),
                        folder_.string(), newest_problem);
}

RunCheckpoints::Position RunCheckpoints::load(const std::filesystem::path& path) {
  const auto saved = checkpoint::TrainingCheckpoint::open(path);
  saved.verify_checksums(ranks_.rank(), ranks_.world_size());
  std::vector<checkpoint::GroupLayout::Entry> wanted;
  for (const auto& group : state_.groups()) {
    const auto entries = layout_of(*group).entries;
    wanted.insert(wanted.end(), entries.begin(), entries.end());
  }
  saved.require_parameters(wanted);

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
  const auto& extra = saved.state().extra;
  optimizer_.restore_counts(saved.state().step, extra.value("skipped_steps", int64_t{0}));
  loss_scale_.restore(extra.value("loss_scale", LossScale::kInitial), extra.value("clean_steps", int64_t{0}));
  run_id_ = saved.state().run_id;
  return {.samples_seen = saved.state().samples_seen,
          .data_fingerprint = extra.value("data_fingerprint", uint64_t{0})};
}

void RunCheckpoints::require_none() const {
  const auto newest = checkpoint::latest_checkpoint(folder_);
  if (newest) {
    throw ConfigError(
        "{} holds a checkpoint of an earlier run: go on from it with --resume auto, or give run.output_dir "
        "another folder",
        newest->string());
  }
}

}  // namespace flowshard::training
