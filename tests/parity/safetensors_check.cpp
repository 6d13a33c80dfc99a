#include "core/error.h"
#include "parity.h"

namespace flowshard::parity {
namespace {

std::vector<checkpoint::NamedTensor> tensors_of(const std::string& path) {
  std::vector<checkpoint::NamedTensor> tensors;
  try {
    const checkpoint::SafetensorsFile file(path);
    for (const auto& [key, info] : file.tensors()) tensors.emplace_back(path + ":" + key, file.tensor(key));
    tensors.emplace_back(path, at::ones({1}, at::kBool));
  } catch (const CheckpointError&) {
    tensors.emplace_back(path, at::zeros({1}, at::kBool));
  }
  return tensors;
}

}  // namespace

// For each file of the arguments whether it can be read, under "PATH", and its tensors, under "PATH:KEY".
Result safetensors_check(const Request& request) {
  Result result;
  for (const std::string& path : request.arguments) {
    for (checkpoint::NamedTensor& named : tensors_of(path)) result.tensors.push_back(std::move(named));
  }
  return result;
}

}  // namespace flowshard::parity
