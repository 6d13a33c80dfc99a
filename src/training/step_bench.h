// The speed of an optimizer step on this machine: the real model, sharding, optimizer and collectives, with
// random weights and made-up batches in place of a model's files and of data.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "distributed/environment.h"
#include "training/train_config.h"

namespace flowshard::training {

struct StepBench {
  std::vector<double> step_seconds;             // of each measured step
  std::map<std::string, double> phase_seconds;  // of one step that waits for the device after each phase
  double waiting_seconds = 0;  // of a step of rank 0 in collectives, mean; on a GPU the time to queue them
  double train_flops = 0;      // of a step of one rank (docs/memory.md)
  double last_loss = 0;
  // Of rank 0's device, in bytes; 0 on a CPU.
  int64_t predicted = 0, allocated = 0, reserved = 0;
  int64_t host_bytes = 0;  // that this rank keeps of masters and moments in host memory

  double median_seconds() const;
};

/// Every rank of the job calls it. Takes the config.json files of model.path; reads no weights and no
/// data, writes nothing. Throws like train().
StepBench bench_step(const TrainConfig& config, const distributed::Environment& environment, int64_t warm_up,
                     int64_t steps);

}  // namespace flowshard::training
