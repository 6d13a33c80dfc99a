#include "training/step_phases.h"

#include <gtest/gtest.h>

#include <thread>

namespace flowshard::training {
namespace {

using namespace std::chrono_literals;

TEST(StepPhases, EachPhaseHasItsOwnTime) {
  StepPhases phases;
  phases.begin_step(12);
  phases.begin("data");
  std::this_thread::sleep_for(20ms);
  phases.begin("forward pass");
  EXPECT_EQ(phases.where(), "step 12 (forward pass)");
  std::this_thread::sleep_for(5ms);
  phases.begin("data");  // a second pass of the same step
  std::this_thread::sleep_for(20ms);

  EXPECT_GE(phases.seconds("data"), 0.040);
  EXPECT_GE(phases.seconds("forward pass"), 0.005);
  EXPECT_EQ(phases.seconds("optimizer step"), 0);
  EXPECT_GE(phases.step_seconds(), phases.seconds("data") + phases.seconds("forward pass"));
}

TEST(StepPhases, WhatBeginsIsALineIfAskedFor) {
  testing::internal::CaptureStderr();
  StepPhases phases("rank 1 of 2: ");
  phases.begin_step(12);
  phases.begin("forward pass");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "rank 1 of 2: step 12 (forward pass)\n");
}

TEST(StepPhases, AStepStartsFromZero) {
  StepPhases phases;
  phases.begin_step(1);
  phases.begin("data");
  std::this_thread::sleep_for(20ms);
  phases.begin_step(2);
  EXPECT_EQ(phases.seconds("data"), 0);
  EXPECT_LT(phases.step_seconds(), 0.020);
}

}  // namespace
}  // namespace flowshard::training
