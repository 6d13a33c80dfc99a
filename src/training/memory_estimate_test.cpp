// Against figures worked out by hand for FLUX.1-dev: 11,901,408,320 parameters, 4608 tokens at 1024x1024.
#include "training/memory_estimate.h"

#include <gtest/gtest.h>

#include "training/memory_advice.h"
#include "training/step_estimate.h"

namespace flowshard::training {
namespace {

constexpr double kGiB = 1 << 30;
constexpr double kParameters = 11'901'408'320;

TrainConfig flux_dev() {
  TrainConfig config;
  config.run.device = Device::kCuda;
  config.precision.mode = Precision::kBf16;
  return config;
}

double gib(const std::vector<MemoryItem>& items, const std::string& name) {
  for (const MemoryItem& item : items) {
    if (item.name == name) return static_cast<double>(item.bytes) / kGiB;
  }
  return 0;
}

double resident(const TrainConfig& config, int64_t num_ranks, const std::string& name) {
  return gib(estimate_memory(config, {}, {.num_ranks = num_ranks}).resident, name);
}

TEST(ModelSizes, AreThoseOfFluxDev) { EXPECT_EQ(ModelSizes{}.transformer(), 11'901'408'320); }

TEST(MemoryEstimate, ShardsAreSharedOutAsTheStrategySays) {
  TrainConfig config = flux_dev();
  const double whole = 4 * kParameters / kGiB;  // 44.34 GiB of fp32
  EXPECT_NEAR(resident(config, 8, "parameters (master)"), whole / 8, 1e-3);
  EXPECT_NEAR(resident(config, 8, "optimizer state"), 2 * whole / 8, 1e-3);
  const auto estimate = estimate_memory(config, {}, {.num_ranks = 8});
  EXPECT_NEAR(gib(estimate.phases, "gradients"), whole / 8, 1e-3);
  config.parallel.strategy = Strategy::kNoShard;
  EXPECT_NEAR(resident(config, 8, "optimizer state"), 2 * whole, 1e-3);
  config.parallel.strategy = Strategy::kHybridShard;
  EXPECT_NEAR(resident(config, 16, "optimizer state"), 2 * whole / 8, 1e-3);
  config.parallel.shard_size = 4;
  EXPECT_NEAR(resident(config, 16, "optimizer state"), 2 * whole / 4, 1e-3);
}

TEST(MemoryEstimate, MomentsOf8BitsTakeAQuarter) {
  TrainConfig config = flux_dev();
  config.optimizer.state_dtype = StateDtype::kInt8;
  EXPECT_NEAR(resident(config, 8, "optimizer state"), 2 * (1 + 4 / 256.0) * kParameters / 8 / kGiB, 1e-3);
}

TEST(MemoryEstimate, OffloadedShardsAreOnTheHostAsFarAsTheBudgetGoes) {
  TrainConfig config = flux_dev();
  const double whole = 4 * kParameters / kGiB;
  config.memory.offload_optimizer = config.memory.offload_parameters = true;
  EXPECT_EQ(resident(config, 8, "parameters (master)"), 0);
  EXPECT_EQ(resident(config, 8, "optimizer state"), 0);
  // Three buffers for a slice of 2^24 masters and moments, and two slices of masters to gather.
  EXPECT_NEAR(resident(config, 8, "staging from the host"), (3 * 12 + 2 * 4) / 64.0, 1e-3);
  EXPECT_NEAR(gib(estimate_memory(config, {}, {.num_ranks = 16}).host, "offloaded shards"), 3 * whole / 2,
              1e-3);
  config.memory.host_gib = 80;  // 10 a rank: the masters, and what is left for moments
  EXPECT_EQ(resident(config, 8, "parameters (master)"), 0);
  EXPECT_NEAR(resident(config, 8, "optimizer state"), 3 * whole / 8 - 10, 1e-3);
}

TEST(MemoryEstimate, AMachineOfTwoGpusHolds88Point7GibOfParametersGradientsAndMoments) {
  TrainConfig config = flux_dev();
  config.train.gradient_accumulation_steps = 2;  // gradients stay
  double sum = 0;
  for (const char* name : {"parameters (master)", "optimizer state", "gradients"})
    sum += resident(config, 2, name);
  EXPECT_NEAR(sum, 88.7, 0.05);
}

TEST(MemoryEstimate, BuffersAreTwoOfADoubleBlockOrWhatTheStrategyKeeps) {
  TrainConfig config = flux_dev();
  const double rotating = 64'124'992.0 + 2 * 339'831'296.0;
  EXPECT_NEAR(resident(config, 8, "gathered parameters"), 2 * rotating / kGiB, 1e-3);
  EXPECT_NEAR(resident(config, 8, "gradients of blocks"), 4 * rotating / kGiB, 1e-3);
  config.parallel.strategy = Strategy::kShardGradOp;
  EXPECT_NEAR(resident(config, 8, "gathered parameters"), 22.17, 0.01);
  config.train.gradient_accumulation_steps = 2;
  config.train.no_sync = true;
  EXPECT_NEAR(resident(config, 8, "gradients of blocks"), 44.34, 0.01);
  // One rank: gradients are written where they stay, fp32 parameters are used where they lie.
  config = flux_dev();
  EXPECT_EQ(resident(config, 1, "gradients of blocks"), 0);
  EXPECT_GT(resident(config, 1, "gathered parameters"), 0);
  config.precision.mode = Precision::kFp32;
  EXPECT_EQ(resident(config, 1, "gathered parameters"), 0);
}

// docs/memory.md: 1121, 608 and 57 D of 27 MiB a sample; what else a phase needs is the same in each mode.
TEST(MemoryEstimate, ActivationsAreThoseOfTheTable) {
  TrainConfig config = flux_dev();
  config.train.gradient_accumulation_steps = 2;  // apart from gradients
  const auto activations = [&](ActivationCheckpointing mode) {
    config.memory.activation_checkpointing = mode;
    return gib(estimate_memory(config, {}, {}).phases, "activations");
  };
  const double none = activations(ActivationCheckpointing::kNone);
  EXPECT_NEAR(none - activations(ActivationCheckpointing::kSelective), (1121 - 608) * 27 / 1024.0, 1e-3);
  // The block that runs again keeps 20 D beside its input.
  EXPECT_NEAR(none - activations(ActivationCheckpointing::kFull), (1121 - 57 - 20) * 27 / 1024.0, 1e-3);
  config.memory.activation_checkpointing = ActivationCheckpointing::kNone;
  config.train.batch_size = 4;
  EXPECT_NEAR(gib(estimate_memory(config, {}, {}).phases, "activations"), 4 * none, 1e-3);
}

TEST(MemoryEstimate, GradientsTakeThePlaceOfActivations) {
  TrainConfig config = flux_dev();
  const auto most = [&](ActivationCheckpointing mode) {
    config.memory.activation_checkpointing = mode;
    return gib(estimate_memory(config, {}, {.num_ranks = 2}).phases, "activations, gradients");
  };
  const auto activations = [&] {
    TrainConfig several = config;
    several.train.gradient_accumulation_steps = 2;
    return gib(estimate_memory(several, {}, {.num_ranks = 2}).phases, "activations");
  };
  // A single block frees 19 D = 0.50 GiB and makes 0.26 GiB: the most is there when the last one has made
  // its.
  const double none = most(ActivationCheckpointing::kNone);
  EXPECT_NEAR(none, activations() + (64'124'992.0 + 141'591'808.0) * 2 / kGiB, 1e-3);
  // Checkpointed blocks keep 1 D = 0.03 GiB: the most is there when the first one has made its.
  const double full = most(ActivationCheckpointing::kFull);
  EXPECT_NEAR(full, activations() - 56 * 27 / 1024.0 + kParameters * 2 / kGiB, 1e-3);
}

TEST(MemoryEstimate, OnlyTheLargestPhaseCounts) {
  MemoryEstimate estimate;
  estimate.resident = {{"a", 5}, {"b", 7}};
  estimate.phases = {{"c", 3}, {"d", 4}};
  estimate.context_bytes = 2;
  EXPECT_EQ(estimate.tensors(), 16);
  EXPECT_EQ(estimate.device(), 18);
}

TEST(MemoryEstimate, FrozenEncodersAre4969MillionParameters) {
  EXPECT_NEAR(resident(flux_dev(), 8, "frozen encoders"), 2 * 4'969'190'819.0 / kGiB, 1e-3);
}

TEST(MemoryEstimate, TheDiskHoldsWhatIsKeptAndTheOneBeingWritten) {
  TrainConfig config = flux_dev();
  config.checkpoint.keep = 3;
  const MemoryEstimate estimate = estimate_memory(config, {}, {.num_ranks = 8});
  EXPECT_EQ(estimate.checkpoint_bytes, 12 * 11'901'408'320);
  EXPECT_EQ(estimate.disk_bytes, 4 * estimate.checkpoint_bytes);
  config.optimizer.state_dtype = StateDtype::kInt8;  // stored in fp32
  EXPECT_EQ(estimate_memory(config, {}, {.num_ranks = 8}).checkpoint_bytes, estimate.checkpoint_bytes);
}

TEST(MemoryEstimate, TheFirstHolderOfEachShardCopiesItForACheckpoint) {
  const auto copied = [](const TrainConfig& config) {
    for (const MemoryItem& item : estimate_memory(config, {}, {.num_ranks = 8}).host) {
      if (item.name == "copy for a checkpoint") return item.bytes;
    }
    return int64_t{0};
  };
  TrainConfig config = flux_dev();
  EXPECT_NEAR(static_cast<double>(copied(config)), 12 * kParameters, 1e3);
  config.parallel.strategy = Strategy::kNoShard;
  EXPECT_NEAR(static_cast<double>(copied(config)), 12 * kParameters, 1e3);
  config.checkpoint.async = false;
  EXPECT_EQ(copied(config), 0);
}

TEST(MemoryAdvice, NamesTheSettingsThatSaveMost) {
  TrainConfig config = flux_dev();
  config.train.batch_size = 8;
  const auto advice = advise_memory(config, {}, {.num_ranks = 8}, /*limit=*/10);
  const double expected[] = {8 * (1121 - 77) * 27 / 1024.0,  // 57 blocks' inputs, a block that runs again
                             0,                              // below
                             8 * kParameters / 8 / kGiB - 3 * 8 / 64.0,
                             (8 - 2 * (1 + 4 / 256.0)) * kParameters / 8 / kGiB};
  ASSERT_GE(advice.size(), 4u);
  const char* settings[] = {"memory.activation_checkpointing=full",
                            "train.batch_size=4 with train.gradient_accumulation_steps=2",
                            "memory.offload_optimizer=true", "optimizer.state_dtype=int8"};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(advice[i].setting, settings[i]);
    if (expected[i] == 0) continue;
    EXPECT_NEAR(static_cast<double>(advice[i].saved_bytes) / kGiB, expected[i], 1e-3);
  }
  EXPECT_EQ(to_text({advice[0]}), "memory.activation_checkpointing=full saves 220.22 GiB");
}

TEST(MemoryAdvice, FollowsFromWhatIsSetAlready) {
  TrainConfig config = flux_dev();
  config.parallel.strategy = Strategy::kNoShard;
  EXPECT_EQ(advise_memory(config, {}, {.num_ranks = 8})[0].setting, "parallel.strategy=full_shard");
  config = flux_dev();
  config.precision.mode = Precision::kBf16Pure;
  config.memory.activation_checkpointing = ActivationCheckpointing::kFull;
  config.memory.offload_optimizer = config.memory.offload_parameters = true;
  config.optimizer.state_dtype = StateDtype::kInt8;
  EXPECT_TRUE(advise_memory(config, {}, {.num_ranks = 64}).empty());
}

// Published yardstick: 74.38, 41.93 and 21.50 TFLOP forward; training is three times that.
TEST(StepEstimate, FlopsAreTheYardsticks) {
  TrainConfig config = flux_dev();
  for (const auto& [side, tflop] : {std::pair{1024, 74.38}, {768, 41.93}, {512, 21.50}}) {
    config.data.height = config.data.width = side;
    const StepEstimate estimate = estimate_step(config, {}, {}, {});
    EXPECT_NEAR(estimate.forward_flops / 1e12, tflop, 0.015) << side;
    EXPECT_EQ(estimate.train_flops, 3 * estimate.forward_flops);
  }
}

TEST(StepEstimate, FullCheckpointingRunsEveryBlockForwardTwice) {
  TrainConfig config = flux_dev();
  const double none = estimate_step(config, {}, {}, {}).compute_seconds;
  config.memory.activation_checkpointing = ActivationCheckpointing::kFull;
  EXPECT_NEAR(estimate_step(config, {}, {}, {}).compute_seconds / none, 4.0 / 3, 1e-9);
}

TEST(StepEstimate, BytesOfACollectiveAreThoseOfARing) {
  TrainConfig config = flux_dev();
  // Gathered twice in bf16, reduced once in fp32; a rank of two sends half of each.
  EXPECT_NEAR(estimate_step(config, {}, {.num_ranks = 2}, {}).communication_bytes, kParameters * 4, 1e6);
  EXPECT_EQ(estimate_step(config, {}, {.num_ranks = 1}, {}).communication_bytes, 0);
  config.parallel.strategy = Strategy::kNoShard;
  EXPECT_NEAR(estimate_step(config, {}, {.num_ranks = 2}, {}).communication_bytes, kParameters * 4, 1e6);
  EXPECT_NEAR(estimate_step(config, {}, {.num_ranks = 8}, {}).communication_bytes, kParameters * 7, 1e6);
}

}  // namespace
}  // namespace flowshard::training
