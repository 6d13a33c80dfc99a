#include "training/precision.h"

namespace flowshard::training {
namespace {

at::ScalarType dtype_or(Dtype dtype, at::ScalarType automatic) {
  switch (dtype) {
    case Dtype::kFp32:
      return at::kFloat;
    case Dtype::kBf16:
      return at::kBFloat16;
    case Dtype::kFp16:
      return at::kHalf;
    default:
      return automatic;
  }
}

at::ScalarType compute_dtype(Precision mode) {
  switch (mode) {
    case Precision::kFp32:
      return at::kFloat;
    case Precision::kFp16:
      return at::kHalf;
    default:
      return at::kBFloat16;
  }
}

}  // namespace

RunPrecision precision_of(const TrainConfig& config) {
  const auto& [mode, param, reduce, buffer] = config.precision;
  const bool pure = mode == Precision::kBf16Pure;
  return {.shards = {.param_dtype = dtype_or(param, compute_dtype(mode)),
                     .reduce_dtype = dtype_or(reduce, pure ? at::kBFloat16 : at::kFloat),
                     .master_dtype = pure ? at::kBFloat16 : at::kFloat},
          .buffer_dtype = dtype_or(buffer, mode == Precision::kFp32 ? at::kFloat : at::kBFloat16)};
}

}  // namespace flowshard::training
