#include "launcher/endpoint.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "launcher/hardware.h"

namespace flowshard::launcher {
namespace {

TEST(Endpoint, ParsesHostAndPort) {
  EXPECT_EQ(parse_endpoint("gpu-1:29500").host, "gpu-1");
  EXPECT_EQ(parse_endpoint("gpu-1:29500").port, 29500);
  EXPECT_EQ(parse_endpoint("[fe80::1]:1").host, "fe80::1");
  for (const char* text : {"", "gpu-1", "gpu-1:", ":29500", "gpu-1:29500x", "gpu-1:70000", "gpu-1:-1"}) {
    EXPECT_THROW(parse_endpoint(text), ConfigError) << text;
  }
}

TEST(Endpoint, FreePortsDiffer) {
  Endpoint first, second;
  const FileDescriptor a = listen_at(first, true), b = listen_at(second, true);
  EXPECT_NE(first.port, 0);
  EXPECT_NE(first.port, second.port);
}

TEST(Endpoint, TakenPortIsNamed) {
  for (const bool taken_on_loopback : {true, false}) {
    for (const bool loopback : {true, false}) {
      Endpoint taken;
      const FileDescriptor holder = listen_at(taken, taken_on_loopback);
      try {
        listen_at(taken, loopback);
        FAIL() << taken_on_loopback << loopback;
      } catch (const ConfigError& error) {
        EXPECT_NE(std::string(error.what()).find(fmt::format("port {} is taken", taken.port)),
                  std::string::npos);
      }
    }
  }
}

TEST(Hardware, ProcessesPerNode) {
  EXPECT_EQ(processes_per_node("3"), 3);
  EXPECT_EQ(processes_per_node("cpu"), num_cores());
  EXPECT_GE(processes_per_node("auto"), 1);
  for (const char* text : {"0", "-1", "two", "2x", ""}) {
    EXPECT_THROW(processes_per_node(text), ConfigError) << text;
  }
}

}  // namespace
}  // namespace flowshard::launcher
