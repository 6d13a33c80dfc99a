#include "training/save_request.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <fstream>

#include "core/temporary_folder.h"

namespace flowshard::training {
namespace {

TEST(SaveRequestTest, EverySignalIsTakenOnce) {
  SaveRequest request("");
  EXPECT_FALSE(request.take());
  for (int round = 0; round < 2; ++round) {
    std::raise(SIGUSR1);
    EXPECT_TRUE(request.take());
    EXPECT_FALSE(request.take());
    request.done();
  }
}

TEST(SaveRequestTest, AFileStaysUntilTheCheckpointIsSafe) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder / "save";
  SaveRequest request(file);
  EXPECT_FALSE(request.take());
  for (int round = 0; round < 2; ++round) {
    request.done();  // of a regular checkpoint
    std::ofstream(file).put('x');
    EXPECT_TRUE(request.take());
    EXPECT_FALSE(request.take());
    EXPECT_TRUE(std::filesystem::exists(file));
    request.done();
    EXPECT_FALSE(std::filesystem::exists(file));
    EXPECT_FALSE(request.take());
  }
}

TEST(SaveRequestTest, WhatCannotBeRemovedIsNotARequestForEver) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "save" / "not empty");
  SaveRequest request(folder / "save");
  EXPECT_TRUE(request.take());
  request.done();
  EXPECT_FALSE(request.take());
  std::filesystem::remove_all(folder / "save");
  EXPECT_FALSE(request.take());
  std::ofstream(folder / "save").put('x');
  EXPECT_TRUE(request.take());
}

TEST(SaveRequestTest, AFileTouchedDuringASaveAsksForAnother) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder / "save";
  SaveRequest request(file);
  std::ofstream(file).put('x');
  EXPECT_TRUE(request.take());
  std::filesystem::last_write_time(file, std::filesystem::last_write_time(file) + std::chrono::seconds(1));
  request.done();
  EXPECT_TRUE(std::filesystem::exists(file));
  EXPECT_TRUE(request.take());
  request.done();
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(SaveRequestTest, ADanglingLinkIsARequest) {
  const TemporaryFolder folder;
  SaveRequest request(folder / "save");
  std::filesystem::create_symlink("nowhere", folder / "save");
  EXPECT_TRUE(request.take());
  request.done();
  EXPECT_FALSE(std::filesystem::is_symlink(folder / "save"));
}

TEST(SaveRequestTest, ALateSignalEndsNothing) {
  { const SaveRequest request(""); }
  std::raise(SIGUSR1);
}

}  // namespace
}  // namespace flowshard::training
