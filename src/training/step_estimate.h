// How long an optimizer step will take, from the configuration and the sizes of the model: the matrix
// products and attention over a share of the GPU's peak, and the bytes of the collectives over a bandwidth.
#pragma once

#include "training/memory_estimate.h"

namespace flowshard::training {

/// What a machine reaches; the defaults are measured on H200s with NVLink.
struct MachineSpeed {
  double peak_flops = 989e12;               // a second, of bf16 matrix products
  double peak_share = 0.40;                 // of it that a step reaches
  double bytes_per_second = 265e9;          // that a collective moves through a rank
  double host_bytes_per_second = 50e9;      // between host and GPU, each way
  double memory_bytes_per_second = 3.4e12;  // that the optimizer reads and writes
};

struct StepEstimate {
  double forward_flops = 0;        // of one sample
  double train_flops = 0;          // of one sample: three forward passes, the yardstick of throughput
  double compute_seconds = 0;      // of forward and backward of all passes, recomputation included
  double communication_bytes = 0;  // that a rank sends
  double communication_seconds = 0;
  double optimizer_seconds = 0;
  /// Communication runs beside the computation.
  double step_seconds() const;
};

/// Without waiting for data and without the frozen encoders.
StepEstimate estimate_step(const TrainConfig& config, const ModelSizes& model, const JobSize& job,
                           const MachineSpeed& speed);

}  // namespace flowshard::training
