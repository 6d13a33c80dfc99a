#include "checkpoint/group_layout.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/safetensors.h"
#include "core/error.h"

namespace flowshard::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxNumel = int64_t{1} << 60;

// The product of the sizes; -1 if one is negative or the product is beyond any memory.
int64_t checked_numel(const std::vector<int64_t>& shape) {
  int64_t numel = 1;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(numel, size, &numel) || numel > kMaxNumel) return -1;
  }
  return numel;
}

std::string fault_of(const GroupLayout& group, int64_t num_shards) {
  if (group.padded_numel < group.numel || group.padded_numel % num_shards != 0) {
    return fmt::format("group '{}' of {} elements cannot be {} with its padding for {} shards", group.name,
                       group.numel, group.padded_numel, num_shards);
  }
  std::vector<GroupLayout::Entry> entries = group.entries;
  std::ranges::sort(entries, {}, &GroupLayout::Entry::offset);
  int64_t end = 0;
  for (const GroupLayout::Entry& entry : entries) {
    const int64_t numel = checked_numel(entry.shape);
    if (numel < 0 || entry.offset < end || entry.offset > group.numel - numel) {
      return fmt::format("parameter {} [{}] cannot lie at element {} of group '{}' of {} elements",
                         entry.parameter, fmt::join(entry.shape, ", "), entry.offset, group.name,
                         group.numel);
    }
    end = entry.offset + numel;
  }
  return "";
}

std::string fault_of(const GroupLayout& group, const std::vector<StateLayout>& states) {
  std::set<std::string> names;
  for (const StateLayout& state : states) {
    if (!names.insert(state.name).second) return fmt::format("group '{}' has a state twice", group.name);
    if (state.dtype != at::kFloat && state.dtype != at::kBFloat16 && state.dtype != at::kHalf) {
      return fmt::format("{} of group '{}' is not F32, BF16 or F16", state.name, group.name);
    }
  }
  return "";
}

// In version 1 a state is its name alone.
StateLayout state_from_json(const Json& json) {
  if (json.is_string()) return {.name = json.get<std::string>(), .dtype = at::kFloat};
  return {
      .name = json.at("name").get<std::string>(),
      .dtype = safetensors_dtype(json.at("dtype").get<std::string>()).value_or(at::ScalarType::Undefined)};
}

}  // namespace

int64_t GroupLayout::Entry::numel() const { return checked_numel(shape); }

const StateLayout* CheckpointLayout::Group::find(const std::string& name) const {
  const auto found = std::ranges::find(states, name, &StateLayout::name);
  return found == states.end() ? nullptr : &*found;
}

int64_t CheckpointLayout::find(const std::string& name) const {
  const auto found = std::ranges::find(groups, name, [](const Group& group) { return group.layout.name; });
  return found == groups.end() ? -1 : found - groups.begin();
}

std::string fault_of(const CheckpointLayout& layout) {
  if (layout.num_shards < 1) return fmt::format("there cannot be {} shards", layout.num_shards);
  std::set<std::string> groups, parameters;
  for (const auto& [group, states] : layout.groups) {
    if (!groups.insert(group.name).second) return fmt::format("two groups are called '{}'", group.name);
    for (const auto& entry : group.entries) {
      if (!parameters.insert(entry.parameter).second)
        return fmt::format("parameter {} stands twice", entry.parameter);
    }
    if (std::string fault = fault_of(group, layout.num_shards); !fault.empty()) return fault;
    if (std::string fault = fault_of(group, states); !fault.empty()) return fault;
  }
  return "";
}

Json to_json(const CheckpointLayout& layout) {
  Json groups = Json::array();
  for (const auto& [group, states] : layout.groups) {
    Json parameters = Json::array();
    for (const auto& entry : group.entries) {
      parameters.push_back({{"name", entry.parameter}, {"shape", entry.shape}, {"offset", entry.offset}});
    }
    Json states_json = Json::array();
    for (const StateLayout& state : states) {
      states_json.push_back({{"name", state.name}, {"dtype", safetensors_name(state.dtype)}});
    }
    groups.push_back({{"name", group.name},
                      {"states", std::move(states_json)},
                      {"numel", group.numel},
                      {"padded_numel", group.padded_numel},
                      {"parameters", std::move(parameters)}});
  }
  return {{"num_shards", layout.num_shards}, {"groups", std::move(groups)}};
}

CheckpointLayout layout_from_json(const Json& json, const std::string& source) {
  CheckpointLayout layout;
  try {
    layout.num_shards = json.at("num_shards").get<int64_t>();
    for (const Json& group_json : json.at("groups")) {
      GroupLayout group{.name = group_json.at("name").get<std::string>(),
                        .entries = {},
                        .numel = group_json.at("numel").get<int64_t>(),
                        .padded_numel = group_json.at("padded_numel").get<int64_t>()};
      for (const Json& entry : group_json.at("parameters")) {
        group.entries.push_back({.parameter = entry.at("name").get<std::string>(),
                                 .shape = entry.at("shape").get<std::vector<int64_t>>(),
                                 .offset = entry.at("offset").get<int64_t>()});
      }
      layout.groups.push_back({std::move(group), {}});
      for (const Json& state : group_json.at("states")) {
        layout.groups.back().states.push_back(state_from_json(state));
      }
    }
  } catch (const Json::exception& error) {
    throw CheckpointError("{}: it is no layout of a checkpoint: {}", source, error.what());
  }
  if (const std::string fault = fault_of(layout); !fault.empty())
    throw CheckpointError("{}: {}", source, fault);
  return layout;
}

}  // namespace flowshard::checkpoint
