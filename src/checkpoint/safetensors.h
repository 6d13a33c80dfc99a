// The safetensors format: a mapped, zero-copy reader that trusts nothing, and a streaming writer.
// Format: https://github.com/huggingface/safetensors (8-byte little-endian header length, JSON header, tensor
// bytes). A reader may be used from several threads at once. Tensors returned by it keep the mapping alive.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "storage/atomic_file.h"
#include "storage/mapped_file.h"

namespace flowshard::checkpoint {

using NamedTensor = std::pair<std::string, at::Tensor>;
using Metadata = std::map<std::string, std::string>;

struct TensorInfo {
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  int64_t offset_bytes;  // from the start of the file
  int64_t size_bytes;
};

class SafetensorsFile {
 public:
  /// Maps the file and checks every byte of the header and every range: sizes that match shapes, no overlap,
  /// no gap, no bytes left over, no duplicate key. Throws CheckpointError with file, tensor, wanted and found
  /// numbers.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  const Metadata& metadata() const { return metadata_; }

  /// A view of the mapped bytes (never written to; the map is private). Throws CheckpointError if there is no
  /// such key.
  at::Tensor tensor(const std::string& key) const;

 private:
  std::filesystem::path path_;
  std::map<std::string, TensorInfo> tensors_;
  Metadata metadata_;
  std::shared_ptr<const storage::MappedFile> file_;
};

/// Writes `tensors` (CPU or CUDA, any strides; names differ) and publishes the file by rename after fsync: at
/// `path` there is the old file or the whole new one. The bytes lie in the given order, but wider elements
/// first, so that every tensor is aligned. Returns what was written. Throws CheckpointError (no space, no
/// permission) and leaves nothing behind.
storage::FileDigest write_safetensors(const std::filesystem::path& path,
                                      const std::vector<NamedTensor>& tensors, const Metadata& metadata = {});

}  // namespace flowshard::checkpoint
