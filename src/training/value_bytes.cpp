#include "training/value_bytes.h"

namespace flowshard::training {
namespace {

double bytes_of(Dtype dtype, double automatic) {
  if (dtype == Dtype::kAuto) return automatic;
  return dtype == Dtype::kFp32 ? 4 : 2;
}

}  // namespace

ValueBytes value_bytes(const TrainConfig& config) {
  const TrainConfig::PrecisionMode& precision = config.precision;
  const bool pure = precision.mode == Precision::kBf16Pure;
  const double computed = precision.mode == Precision::kFp32 ? 4 : 2;
  ValueBytes bytes;
  bytes.param = bytes_of(precision.param_dtype, computed);
  bytes.reduce = bytes_of(precision.reduce_dtype, pure ? 2 : 4);
  bytes.master = pure ? 2 : 4;
  bytes.grad = bytes.reduce == bytes.master ? bytes.master : 4;
  // A code and its share of a scale, for each moment.
  if (config.optimizer.state_dtype == StateDtype::kInt8) bytes.moments = 2 * (1 + 4 / 256.0);
  bytes.average = config.ema.decay > 0 ? 4 : 0;
  bytes.buffer = bytes_of(precision.buffer_dtype, computed);
  return bytes;
}

}  // namespace flowshard::training
