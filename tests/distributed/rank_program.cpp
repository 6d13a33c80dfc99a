// rank_program STEPS SECONDS_A_STEP TIMEOUT [cpu|cuda]: one rank of a job of collectives whose results are
// known. Prints "pid N" when all ranks have met, "step N" after each step and "done" at the end.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "core/error.h"
#include "distributed/process_group.h"

namespace flowshard::distributed {
namespace {

constexpr int64_t kSize = 100000;

void say(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

void step(ProcessGroup& group, at::Device device) {
  const int world = group.world_size();
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  const at::Tensor mine = at::full({kSize}, group.rank() + 1, options);
  const at::Tensor all = at::empty({world * kSize}, options);
  const at::Tensor sum = at::empty({kSize}, options);
  const auto gathering = group.all_gather(all, mine);
  gathering->wait();
  group.reduce_scatter_sum(sum, all)->wait();  // every rank has gathered the same
  check(at::allclose(sum, mine * world), "the sum over ranks of rank r's slice is world times r + 1");
  group.all_reduce_sum(mine)->wait();
  check(at::allclose(mine, at::full_like(mine, world * (world + 1) / 2)), "the sum over ranks");
}

int run(char** arguments) {
  const int steps = std::atoi(arguments[1]);
  const std::chrono::duration<double> pause(std::atof(arguments[2]));
  const std::chrono::seconds timeout(std::atoi(arguments[3]));
  const Environment environment = Environment::from_variables();
  const at::Device device = arguments[4] && std::string(arguments[4]) == "cuda"
                                ? at::Device(at::kCUDA, static_cast<at::DeviceIndex>(environment.local_rank))
                                : at::Device(at::kCPU);
  const auto group = ProcessGroup::create(environment, device, timeout);
  say(fmt::format("pid {}", getpid()));
  for (int i = 0; i < steps; ++i) {
    step(*group, device);
    say(fmt::format("step {}", i));
    std::this_thread::sleep_for(pause);
  }
  group->barrier();
  say("done");
  return 0;
}

}  // namespace
}  // namespace flowshard::distributed

int main(int argc, char** argv) {
  if (argc < 4) {
    fmt::print(stderr, "usage: rank_program STEPS SECONDS_A_STEP TIMEOUT [cpu|cuda]\n");
    return 2;
  }
  try {
    return flowshard::distributed::run(argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", flowshard::first_line(error.what()));
    std::fflush(nullptr);
    std::_Exit(static_cast<int>(flowshard::exit_code_of(error)));
  }
}
