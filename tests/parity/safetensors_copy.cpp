#include "parity.h"

namespace flowshard::parity {

// Every tensor and the metadata, unchanged.
Result safetensors_copy(const Request& request) {
  Result result{.tensors = {}, .metadata = request.inputs.metadata()};
  for (const auto& [key, info] : request.inputs.tensors()) {
    result.tensors.emplace_back(key, request.inputs.tensor(key));
  }
  return result;
}

}  // namespace flowshard::parity
