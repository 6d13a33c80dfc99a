#include "training/run_checkpoints.h"

#include <gtest/gtest.h>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/training_checkpoint.h"
#include "core/temporary_folder.h"
#include "distributed/thread_ranks.h"

namespace flowshard::training {
namespace {

/// Rows that few numbers of ranks divide: with 4 ranks some hold nothing but padding of a group.
struct Model {
  Model() {
    five.parameters = {&rows, &bias};
    one.parameters = {&scale};
    for (nn::Parameter* parameter : {&rows, &bias, &scale}) parameter->trainable = true;
  }
  nn::Parameter rows{"rows", {5, 3}}, bias{"bias", {5}}, scale{"one.scale", {1}};
  nn::ParameterGroup five{"", {}}, one{"one", {}};
};

/// A run of one rank, every state filled with numbers of its own.
struct RankOfRun {
  RankOfRun(const std::filesystem::path& output, distributed::ProcessGroup& ranks)
      : config(config_of(output)),
        mesh(ranks, ranks.world_size()),
        state({&model.five, &model.one}, {.mesh = mesh, .device = at::kCPU}),
        optimizer((initialize(), state), config, at::kCPU),
        checkpoints(config, "base", ranks, at::kCPU, state, optimizer, loss_scale) {}

  static TrainConfig config_of(const std::filesystem::path& output) {
    TrainConfig config;
    config.run.output_dir = output;
    config.ema.decay = 0.5;
    return config;
  }
  void initialize() {
    state.initialize([](const nn::ParameterGroup& group) {
      for (nn::Parameter* parameter : group.parameters) parameter->value.zero_();
    });
  }
  /// The buffers of a group, `kinds` in all.
  std::vector<at::Tensor> states_of(size_t group) const {
    std::vector<at::Tensor> states = {state.groups()[group]->master_shard()};
    for (const auto& [name, values] : optimizer.states(group)) states.push_back(values);
    return states;
  }
  /// What element i of the flat buffer of a state is to be.
  at::Tensor wanted(size_t group, size_t kind) const {
    const fsdp::ParamGroup& shards = *state.groups()[group];
    at::Tensor flat =
        at::arange(shards.padded_numel(), at::kFloat).add_(100.0 * static_cast<double>(kind + 1)).div_(3);
    flat.narrow(0, shards.numel(), shards.padded_numel() - shards.numel()).zero_();
    return flat.narrow(0, shards.shard_begin(), shards.shard_numel());
  }

  Model model;
  TrainConfig config;
  distributed::DeviceMesh mesh;
  fsdp::ShardedState state;
  Optimizer optimizer;
  LossScale loss_scale{true};
  RunCheckpoints checkpoints;
};

TEST(RunCheckpointsTest, EveryStateComesBackOnAnotherNumberOfRanks) {
  const TemporaryFolder folder;
  distributed::run_thread_ranks(4, std::chrono::seconds(30), [&](distributed::ProcessGroup& ranks) {
    RankOfRun run(folder.path(), ranks);
    for (size_t group = 0; group < 2; ++group) {
      for (size_t kind = 0; kind < 4; ++kind) run.states_of(group)[kind].copy_(run.wanted(group, kind));
    }
    run.optimizer.restore_counts(7, 2);
    run.loss_scale.restore(1024, 30);
    run.checkpoints.start_save(56, 0xfedcba9876543210);
    for (const at::Tensor& values : run.states_of(0)) values.add_(1);  // training goes on
    EXPECT_TRUE(run.checkpoints.is_saving());
    EXPECT_EQ(run.checkpoints.finish_save(), "step-00000007");
    EXPECT_FALSE(run.checkpoints.is_saving());
  });
  for (const int num_ranks : {1, 2, 3, 4, 7}) {
    distributed::run_thread_ranks(num_ranks, std::chrono::seconds(30), [&](distributed::ProcessGroup& ranks) {
      RankOfRun run(folder.path(), ranks);
      const auto position = run.checkpoints.load_latest();
      ASSERT_TRUE(position);
      EXPECT_EQ(position->samples_seen, 56);
      EXPECT_EQ(position->data_fingerprint, 0xfedcba9876543210);
      EXPECT_EQ(run.optimizer.step_count(), 7);
      EXPECT_EQ(run.optimizer.skipped_steps(), 2);
      EXPECT_EQ(run.loss_scale.factor(), 1024);
      EXPECT_EQ(run.loss_scale.clean_steps(), 30);
      for (size_t group = 0; group < 2; ++group) {
        for (size_t kind = 0; kind < 4; ++kind) {
          EXPECT_TRUE(at::equal(run.states_of(group)[kind], run.wanted(group, kind)))
              << num_ranks << " ranks, group " << group << ", state " << kind;
        }
      }
    });
  }
}

TEST(RunCheckpointsTest, HoldsTheValuesOfTheCallAndSavesDoNotMix) {
  const TemporaryFolder folder;
  distributed::run_thread_ranks(1, std::chrono::seconds(30), [&](distributed::ProcessGroup& ranks) {
    RankOfRun run(folder.path(), ranks);
    const auto add = [&](double number) {
      for (const at::Tensor& values : run.states_of(0)) values.add_(number);
    };
    for (const int64_t step : {1, 2, 3}) {
      add(1);
      run.optimizer.restore_counts(step, 0);
      run.checkpoints.start_save(step, 0);
      add(0.5);
      run.checkpoints.finish_save();
      add(-0.5);
    }
  });
  for (const int64_t step : {1, 2, 3}) {
    const auto saved = checkpoint::TrainingCheckpoint::open(
        folder.path() / "checkpoints" / checkpoint::step_folder_name(step), true);
    for (const char* state : {"model", "exp_avg", "exp_avg_sq", "ema"}) {
      EXPECT_TRUE(at::equal(saved.read_parameter(state, "rows"), at::full({5, 3}, step, at::kFloat)))
          << state;
    }
  }
}

TEST(HostCopiesTest, MemoryIsKept) {
  HostCopies copies(at::kCPU);
  const at::Tensor values = at::arange(5, at::kFloat);
  const auto group = [&](size_t) { return checkpoint::GroupShards{{}, {{"model", values}}}; };
  copies.reserve(2, group);
  const at::Tensor first = copies.copy(2, group, false)[1].states[0].second;
  EXPECT_TRUE(at::equal(first, values));
  EXPECT_NE(first.data_ptr(), values.data_ptr());
  copies.reserve(2, group);
  EXPECT_EQ(copies.copy(2, group, true)[1].states[0].second.data_ptr(), first.data_ptr());
}

}  // namespace
}  // namespace flowshard::training
