// Reading a sharded training checkpoint: whole parameters, or any slice of a flat buffer, whatever the number
// of shards it was written with. May be used from several threads at once. Format: docs/checkpoint_format.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/group_layout.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/training_state.h"

namespace flowshard::checkpoint {

class TrainingCheckpoint {
 public:
  /// Throws CheckpointError that names every file of the checkpoint which is absent, of the wrong size or, if
  /// `verify_checksums` (which reads all of it), has other bytes than were written; ConfigError if `folder`
  /// is no checkpoint at all.
  static TrainingCheckpoint open(const std::filesystem::path& folder, bool verify_checksums = false);

  /// Whether `folder` looks like a training checkpoint (and not like a model in another format).
  static bool is_checkpoint(const std::filesystem::path& folder);

  /// Reads part `part` of `num_parts` of the files, so that ranks can share the work. Throws CheckpointError
  /// if one has other bytes than were written.
  void verify_checksums(int64_t part, int64_t num_parts) const;

  const std::filesystem::path& path() const { return path_; }
  const TrainingState& state() const { return state_; }
  const CheckpointLayout& layout() const { return layout_; }

  /// All parameters of all groups, in order.
  std::vector<GroupLayout::Entry> parameters() const;
  bool has(const std::string& state, const std::string& parameter) const;
  /// As which it is stored.
  at::ScalarType dtype(const std::string& state, const std::string& parameter) const;

  /// Whatever the dtype of the state, which converts to fp32 without rounding: fp32 [shape of the parameter],
  /// on the CPU, owned by the caller.
  at::Tensor read_parameter(const std::string& state, const std::string& parameter) const;

  /// Elements [begin, end) of the flat buffer that `wanted` describes: fp32 [end - begin], on the CPU, owned
  /// by the caller. `wanted` is the reader's own layout; only names and shapes must agree with the
  /// checkpoint. What belongs to no parameter (padding) is zero.
  at::Tensor read_flat(const std::string& state, const GroupLayout& wanted, int64_t begin, int64_t end) const;

  /// Throws CheckpointError unless the checkpoint has exactly the parameters of `wanted`: counts and names of
  /// those that are missing, unexpected or of another shape.
  void require_parameters(const std::vector<GroupLayout::Entry>& wanted) const;

  /// Copies a state into those of a model's parameters that are no meta tensors (any dtype and device), after
  /// require_parameters() of all.
  void fill_parameters(const std::string& state, const std::vector<NamedTensor>& parameters) const;

 private:
  struct Place {
    size_t group;
    size_t entry;
  };
  const Place& find(const std::string& state, const std::string& parameter) const;
  void copy_flat(const std::string& state, const GroupLayout& group, int64_t begin, int64_t end,
                 at::Tensor destination) const;

  std::filesystem::path path_;
  TrainingState state_;
  CheckpointLayout layout_;
  std::map<std::string, Place> places_;
  std::vector<SafetensorsFile> shards_;
};

}  // namespace flowshard::checkpoint
