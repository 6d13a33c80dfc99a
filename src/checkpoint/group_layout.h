// Where each parameter lies in the flat buffers of a sharded model (docs/checkpoint_format.md). Plain data.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace flowshard::checkpoint {

/// One parameter group as a flat buffer.
struct GroupLayout {
  struct Entry {
    std::string parameter;  // full name in the model
    std::vector<int64_t> shape;
    int64_t offset;  // of its first element in the flat buffer

    int64_t numel() const;
    bool operator==(const Entry&) const = default;
  };

  std::string name;  // "double_blocks.0"; "" for the root group
  std::vector<Entry> entries;
  int64_t numel = 0;         // without the padding
  int64_t padded_numel = 0;  // a multiple of the number of shards

  bool operator==(const GroupLayout&) const = default;
};

/// One of the flat buffers of a group.
struct StateLayout {
  std::string name;       // "model", "exp_avg", ...
  c10::ScalarType dtype;  // kFloat, kBFloat16 or kHalf

  bool operator==(const StateLayout&) const = default;
};

/// The groups of one checkpoint and which states each has.
struct CheckpointLayout {
  struct Group {
    GroupLayout layout;
    std::vector<StateLayout> states;

    /// The state called `name`, null if there is none.
    const StateLayout* find(const std::string& name) const;
  };

  int64_t num_shards = 1;
  std::vector<Group> groups;

  /// The index of the group called `name`, -1 if there is none.
  int64_t find(const std::string& name) const;
};

/// What is wrong with the layout, in words; empty if nothing is.
std::string fault_of(const CheckpointLayout& layout);

nlohmann::json to_json(const CheckpointLayout& layout);

/// Throws CheckpointError, which begins with `source`, for what is no sound layout. Reads format versions 1
/// and 2.
CheckpointLayout layout_from_json(const nlohmann::json& json, const std::string& source);

}  // namespace flowshard::checkpoint
