// The weights of one model component on disk, in one file or many, and the strict filling of a model's
// parameters.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "core/tensor_names.h"

namespace flowshard::checkpoint {

/// All tensors of one component by key.
class Weights {
 public:
  /// A safetensors file; or a folder that holds one, or several with an index (*.safetensors.index.json).
  /// Throws ConfigError if there is nothing of the kind, CheckpointError if a file is unsound, a shard that
  /// the index names is absent (all absent ones are listed), or index and shards disagree.
  static Weights open(const std::filesystem::path& path);

  const std::string& source() const { return source_; }  // for messages
  std::vector<std::string> keys() const;                 // sorted
  bool contains(const std::string& key) const;
  const TensorInfo& info(const std::string& key) const;
  at::Tensor tensor(const std::string& key) const;  // mapped, zero copy

 private:
  std::string source_;
  std::map<std::string, std::shared_ptr<const SafetensorsFile>> files_by_key_;
};

/// Copies weights into `parameters` (converting dtype and device to those of each destination). Every row of
/// every parameter is filled exactly once, and every key is used, except those in `ignored_keys`. A stored
/// shape may differ from the wanted one only by dimensions of size 1 (a 1x1 convolution is a linear layer).
/// Otherwise throws CheckpointError before anything is copied: the counts of missing, unexpected and
/// misshapen tensors, the first few of each by name, and for a missing one the nearest unexpected key.
void fill_parameters(const Weights& weights, const TensorNames& names,
                     const std::vector<NamedTensor>& parameters,
                     const std::vector<std::string>& ignored_keys = {});

}  // namespace flowshard::checkpoint
