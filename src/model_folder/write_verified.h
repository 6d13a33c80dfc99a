// A safetensors file that is read back before anybody relies on it.
#pragma once

#include <filesystem>
#include <functional>
#include <vector>

#include "checkpoint/safetensors.h"

namespace flowshard {

/// Writes the file, one tensor of load(spec) in memory at a time, then reads it and compares every byte with
/// what load(spec) gives once more. Throws CheckpointError; then the file may be there.
void write_verified(const std::filesystem::path& path, const std::vector<checkpoint::TensorSpec>& specs,
                    const checkpoint::Metadata& metadata,
                    const std::function<at::Tensor(const checkpoint::TensorSpec&)>& load);

}  // namespace flowshard
