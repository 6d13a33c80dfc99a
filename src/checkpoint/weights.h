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
  /// Of the file; of several, of the first.
  const Metadata& metadata() const { return metadata_; }
  TensorListing listing() const;

  /// The tensors whose keys begin with `prefix`, under the rest of their keys. Shares the mapping.
  Weights under(const std::string& prefix) const;
  bool has_prefix(const std::string& prefix) const;

 private:
  struct Stored {
    std::shared_ptr<const SafetensorsFile> file;
    std::string key;  // in the file
  };
  const Stored& find(const std::string& key) const;

  std::string source_;
  Metadata metadata_;
  std::map<std::string, Stored> stored_;
};

/// The key that holds the scale of `key` in a file of scaled fp8 weights ("x.weight" -> "x.scale_weight" as
/// ComfyUI writes it, or "x.weight_scale"); "" if there is none.
std::string scale_key(const Weights& weights, const std::string& key);

/// Whether the key says how other weights are quantized and is no weight itself: a scale of a weight or of an
/// activation, or a marker that the whole file or a layer is quantized.
bool is_quantization_key(const std::string& key);

/// Checks that every scale has its weight and that every marker names a format whose weights are value *
/// scale. Throws CheckpointError.
void check_scales(const Weights& weights);

/// value * scale in fp32. `scale` is one number, or one for each row of `stored`.
at::Tensor dequantized(const at::Tensor& stored, const at::Tensor& scale);

/// Copies weights into `parameters` (converting dtype and device to those of each destination). Every row of
/// every parameter is filled exactly once, and every key is used, except those in `ignored_keys`. A weight
/// with a scale (scale_key) is filled with value * scale, rounded once to the destination's dtype. A stored
/// shape may differ from the wanted one only by dimensions of size 1 (a 1x1 convolution is a linear layer).
/// Otherwise throws CheckpointError before anything is copied: the counts of missing, unexpected and
/// misshapen tensors, the first few of each by name, and for a missing one the nearest unexpected key.
void fill_parameters(const Weights& weights, const TensorNames& names,
                     const std::vector<NamedTensor>& parameters,
                     const std::vector<std::string>& ignored_keys = {});

}  // namespace flowshard::checkpoint
