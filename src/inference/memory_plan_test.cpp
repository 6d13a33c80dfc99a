#include "inference/memory_plan.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace flowshard::inference {
namespace {

// 10 + 3 + 1 + 4 * 4 + 4 bytes of weights.
const WeightBytes kWeights = {
    .text_encoders = 10, .autoencoder = 3, .outside_blocks = 1, .blocks = {4, 4, 4, 4}, .modulations = 4};
const WorkBytes kWork = {.encode = 1, .denoise = 2, .decode = 4};
constexpr int64_t kPlenty = 1000;

TEST(MemoryPlan, EverythingIsResidentByDefault) {
  const MemoryPlan plan = plan_memory(kWeights, kWork, LowMemory::kNone, kPlenty);
  EXPECT_EQ(plan.encode, 34 + 1);
  EXPECT_EQ(plan.denoise, 34 + 2);
  EXPECT_EQ(plan.decode, 34 + 4);
}

TEST(MemoryPlan, EncodersAndTransformerTakeTurns) {
  const MemoryPlan plan = plan_memory(kWeights, kWork, LowMemory::kEncoders, kPlenty);
  EXPECT_EQ(plan.encode, 10 + 3 + 1);
  EXPECT_EQ(plan.decode, 21 + 3 + 4);
}

TEST(MemoryPlan, AsManyBlocksStayAsFit) {
  EXPECT_EQ(plan_memory(kWeights, kWork, LowMemory::kBlocks, kPlenty).num_resident, 4u);
  // One resident: 1 + 4 + two buffers of 4, the autoencoder and the decoder's work.
  const int64_t with_one = 1 + 4 + 8 + 3 + 4;
  EXPECT_EQ(plan_memory(kWeights, kWork, LowMemory::kBlocks, with_one).num_resident, 1u);
  EXPECT_EQ(plan_memory(kWeights, kWork, LowMemory::kBlocks, with_one).decode, with_one);
  EXPECT_EQ(plan_memory(kWeights, kWork, LowMemory::kBlocks, with_one - 1).num_resident, 0u);
}

TEST(MemoryPlan, StreamedBlocksAreSpreadEvenly) {
  for (size_t num_blocks : {1, 7, 57}) {
    for (size_t num_resident = 0; num_resident <= num_blocks; ++num_resident) {
      size_t num_streamed = 0, run = 0, longest_run = 0;
      for (size_t i = 0; i < num_blocks; ++i) {
        const bool streamed = is_streamed(i, num_blocks, num_resident);
        num_streamed += streamed;
        run = streamed ? 0 : run + 1;
        longest_run = std::max(longest_run, run);
      }
      EXPECT_EQ(num_streamed, num_blocks - num_resident);
      if (num_streamed > 0) {
        EXPECT_LE(longest_run, (num_blocks + num_streamed - 1) / num_streamed);
      }
    }
  }
}

TEST(MemoryPlan, WhatDoesNotFitIsRefusedWithTheNumbersAndTheModesThatWouldDo) {
  const int64_t free_bytes = 29;
  const MemoryPlan plan = plan_memory(kWeights, kWork, LowMemory::kNone, free_bytes);
  try {
    require_fit(plan, kWeights, kWork, free_bytes, "FLUX", at::Device("cuda:0"));
    FAIL() << "it fits";
  } catch (const ConfigError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("--low-memory encoders"), std::string::npos) << message;
    EXPECT_NE(message.find("--low-memory blocks"), std::string::npos) << message;
  }
  EXPECT_NO_THROW(require_fit(plan, kWeights, kWork, plan.peak(), "FLUX", at::Device("cuda:0")));
}

}  // namespace
}  // namespace flowshard::inference
