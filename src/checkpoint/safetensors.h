// The safetensors format: a mapped, zero-copy reader that trusts nothing, and a streaming writer.
// Format: https://github.com/huggingface/safetensors (8-byte little-endian header length, JSON header, tensor
// bytes). A reader may be used from several threads at once. Tensors returned by it keep the mapping alive.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
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

struct TensorSpec {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> shape;
};

/// Writes a file whose tensors are never all in memory: first says what it will hold, then takes one tensor
/// after the other. Until publish() has returned, there is nothing at `path` but what was there before. Every
/// member throws CheckpointError (no space, no permission) and leaves nothing behind.
class SafetensorsWriter {
 public:
  /// Names differ. Writes the header, if there is room for all that is to follow.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorSpec> tensors,
                    const Metadata& metadata = {});

  /// In the order in which write() wants them: as given, but wider elements first, so that every tensor is
  /// aligned.
  const std::vector<TensorSpec>& tensors() const { return tensors_; }

  /// The next tensor (CPU or CUDA, any strides), of the dtype and shape that were said.
  void write(const at::Tensor& tensor);

  /// When all are written: syncs and renames. Returns what was written.
  storage::FileDigest publish();

 private:
  std::vector<TensorSpec> tensors_;
  size_t num_written_ = 0;
  std::unique_ptr<storage::AtomicFile> file_;
};

/// All `tensors` at once.
storage::FileDigest write_safetensors(const std::filesystem::path& path,
                                      const std::vector<NamedTensor>& tensors, const Metadata& metadata = {});

/// "BF16"
std::string safetensors_name(at::ScalarType dtype);
/// Nothing if the format has no such name.
std::optional<at::ScalarType> safetensors_dtype(const std::string& name);

}  // namespace flowshard::checkpoint
