// Filling a model's parameters from a folder, for the subcommands that run a model.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/weights.h"
#include "nn/parameter.h"
#include "parity.h"

namespace flowshard::parity {

/// "float32" (the default), "bfloat16" or "float16", from the option `dtype`.
inline at::ScalarType dtype_of(const Request& request) {
  const auto name = request.options.value("dtype", "float32");
  return name == "bfloat16" ? at::kBFloat16 : name == "float16" ? at::kHalf : at::kFloat;
}

template <typename Model>
void load(Model& model, at::ScalarType dtype, const checkpoint::Weights& weights, const TensorNames& names,
          const std::vector<std::string>& ignored_keys = {}) {
  nn::materialize(model.parameters(), dtype);
  std::vector<checkpoint::NamedTensor> values;
  for (const nn::Parameter* parameter : model.parameters())
    values.emplace_back(parameter->name, parameter->value);
  checkpoint::fill_parameters(weights, names, values, ignored_keys);
}

}  // namespace flowshard::parity
