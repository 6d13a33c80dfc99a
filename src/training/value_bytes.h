// How many bytes a value of each kind takes in a run: what precision.h says, without LibTorch.
#pragma once

#include "training/train_config.h"

namespace flowshard::training {

struct ValueBytes {
  double param = 4;    // gathered parameters and activations
  double reduce = 4;   // gradients in the buffers of blocks
  double master = 4;   // shards of parameters
  double grad = 4;     // shards of gradients
  double moments = 8;  // both of AdamW's, for one parameter
  double average = 0;  // an averaged weight
  double buffer = 4;   // frozen encoders
};

ValueBytes value_bytes(const TrainConfig& config);

}  // namespace flowshard::training
