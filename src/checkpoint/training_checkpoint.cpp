#include "checkpoint/training_checkpoint.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_json.h"
#include "checkpoint/manifest.h"
#include "checkpoint/mismatch.h"
#include "core/error.h"

namespace flowshard::checkpoint {
namespace {

namespace fs = std::filesystem;

using Entry = GroupLayout::Entry;

std::string key_of(const std::string& state, const std::string& group) { return state + "/" + group; }

// The shard must hold exactly what the layout promises: its file is sound, but may belong to another save.
void require_tensors(const SafetensorsFile& shard, const CheckpointLayout& layout) {
  size_t num_wanted = 0;
  for (const auto& [group, states] : layout.groups) {
    const std::vector<int64_t> shape = {group.padded_numel / layout.num_shards};
    for (const StateLayout& state : states) {
      const std::string key = key_of(state.name, group.name);
      const auto found = shard.tensors().find(key);
      if (found == shard.tensors().end() || found->second.dtype != state.dtype ||
          found->second.shape != shape) {
        throw CheckpointError("{}: tensor {} is not there as {} [{}], as {} promises", shard.path().string(),
                              in_quotes(key), safetensors_name(state.dtype), shape[0], kLayoutName);
      }
      ++num_wanted;
    }
  }
  if (shard.tensors().size() != num_wanted) {
    throw CheckpointError("{}: {} tensors where {} promises {}", shard.path().string(),
                          shard.tensors().size(), kLayoutName, num_wanted);
  }
}

}  // namespace

bool TrainingCheckpoint::is_checkpoint(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / kManifestName, ignored) && fs::exists(folder / kLayoutName, ignored);
}

TrainingCheckpoint TrainingCheckpoint::open(const fs::path& folder, bool verify_checksums) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored))
    throw ConfigError("{}: there is no such checkpoint folder", folder.string());
  const fs::path name = folder.has_filename() ? folder : folder.parent_path();
  if (name.extension() == kTemporarySuffix) {
    throw ConfigError("{}: a checkpoint whose writing was interrupted: take another one", folder.string());
  }
  std::error_code unreadable;
  if (!fs::exists(folder / kManifestName, unreadable) && !unreadable) {
    throw ConfigError("{}: not a training checkpoint: it has no {}", folder.string(), kManifestName);
  }
  const Manifest manifest = read_manifest(folder);
  verify(manifest, folder, verify_checksums);

  TrainingCheckpoint checkpoint;
  checkpoint.path_ = folder;
  checkpoint.state_ = read_training_state(folder / kStateName);
  const int64_t step = checkpoint.state_.step;
  if (step_of(name.filename().string()).value_or(step) != step) {
    throw CheckpointError("{}: it holds step {}: give it its name again, {}", folder.string(), step,
                          step_folder_name(step));
  }
  checkpoint.layout_ = layout_from_json(read_json(folder / kLayoutName), (folder / kLayoutName).string());
  for (int64_t shard = 0; shard < checkpoint.layout_.num_shards; ++shard) {
    const std::string file = shard_file_name(shard, checkpoint.layout_.num_shards);
    if (!manifest.contains(file)) {
      throw CheckpointError("{}: {} is not in its {}", folder.string(), file, kManifestName);
    }
    require_tensors(checkpoint.shards_.emplace_back(folder / file), checkpoint.layout_);
  }
  for (size_t group = 0; group < checkpoint.layout_.groups.size(); ++group) {
    const auto& entries = checkpoint.layout_.groups[group].layout.entries;
    for (size_t entry = 0; entry < entries.size(); ++entry) {
      checkpoint.places_[entries[entry].parameter] = {group, entry};
    }
  }
  return checkpoint;
}

void TrainingCheckpoint::verify_checksums(int64_t part, int64_t num_parts) const {
  Manifest share;
  int64_t index = 0;
  for (const auto& file : read_manifest(path_)) {
    if (index++ % num_parts == part) share.insert(file);
  }
  verify(share, path_, true);
}

std::vector<Entry> TrainingCheckpoint::parameters() const {
  std::vector<Entry> all;
  for (const auto& group : layout_.groups) {
    all.insert(all.end(), group.layout.entries.begin(), group.layout.entries.end());
  }
  return all;
}

bool TrainingCheckpoint::has(const std::string& state, const std::string& parameter) const {
  const auto found = places_.find(parameter);
  return found != places_.end() && layout_.groups[found->second.group].find(state) != nullptr;
}

at::ScalarType TrainingCheckpoint::dtype(const std::string& state, const std::string& parameter) const {
  return layout_.groups[find(state, parameter).group].find(state)->dtype;
}

const TrainingCheckpoint::Place& TrainingCheckpoint::find(const std::string& state,
                                                          const std::string& parameter) const {
  if (!has(state, parameter)) {
    throw CheckpointError("{}: it holds no '{}' of parameter {}", path_.string(), state,
                          in_quotes(parameter));
  }
  return places_.at(parameter);
}

void TrainingCheckpoint::copy_flat(const std::string& state, const GroupLayout& group, int64_t begin,
                                   int64_t end, at::Tensor destination) const {
  const int64_t shard_numel = group.padded_numel / layout_.num_shards;
  while (begin < end) {
    const int64_t shard = begin / shard_numel;
    const int64_t first = begin - shard * shard_numel;
    const int64_t count = std::min(end - begin, shard_numel - first);
    const at::Tensor stored = shards_[static_cast<size_t>(shard)].tensor(key_of(state, group.name));
    destination.narrow(0, 0, count).copy_(stored.narrow(0, first, count));
    destination = destination.narrow(0, count, destination.numel() - count);
    begin += count;
  }
}

at::Tensor TrainingCheckpoint::read_parameter(const std::string& state, const std::string& parameter) const {
  const Place& place = find(state, parameter);
  const GroupLayout& group = layout_.groups[place.group].layout;
  const Entry& entry = group.entries[place.entry];
  const at::Tensor values = at::empty({entry.numel()}, at::kFloat);
  copy_flat(state, group, entry.offset, entry.offset + entry.numel(), values);
  return values.view(entry.shape);
}

at::Tensor TrainingCheckpoint::read_flat(const std::string& state, const GroupLayout& wanted, int64_t begin,
                                         int64_t end) const {
  check(0 <= begin && begin <= end && end <= wanted.padded_numel, "the slice lies in the flat buffer");
  at::Tensor values = at::zeros({end - begin}, at::kFloat);
  for (const Entry& entry : wanted.entries) {
    const int64_t first = std::max(begin, entry.offset);
    const int64_t last = std::min(end, entry.offset + entry.numel());
    if (first >= last) continue;
    const Place& place = find(state, entry.parameter);
    const GroupLayout& group = layout_.groups[place.group].layout;
    const Entry& stored = group.entries[place.entry];
    if (stored.shape != entry.shape) require_parameters({entry});
    const int64_t shift = stored.offset - entry.offset;
    copy_flat(state, group, first + shift, last + shift, values.narrow(0, first - begin, last - first));
  }
  return values;
}

void TrainingCheckpoint::require_parameters(const std::vector<Entry>& wanted) const {
  Mismatch mismatch;
  std::map<std::string, const Entry*> by_name;
  for (const Entry& entry : wanted) {
    by_name.emplace(entry.parameter, &entry);
    if (!places_.contains(entry.parameter)) mismatch.missing.push_back(entry.parameter);
  }
  for (const Entry& stored : parameters()) {
    const auto found = by_name.find(stored.parameter);
    if (found == by_name.end()) {
      mismatch.unexpected.push_back(stored.parameter);
    } else if (found->second->shape != stored.shape) {
      mismatch.misshapen.push_back(fmt::format("{}: [{}], the model has [{}]", in_quotes(stored.parameter),
                                               fmt::join(stored.shape, ", "),
                                               fmt::join(found->second->shape, ", ")));
    }
  }
  mismatch.throw_if_any(path_.string());
}

void TrainingCheckpoint::fill_parameters(const std::string& state,
                                         const std::vector<NamedTensor>& parameters) const {
  std::vector<Entry> wanted;
  for (const auto& [name, tensor] : parameters) wanted.push_back({name, tensor.sizes().vec(), 0});
  require_parameters(wanted);
  for (const Entry& entry : wanted) find(state, entry.parameter);
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : parameters) {
    if (!tensor.is_meta()) tensor.copy_(read_parameter(state, name));
  }
}

}  // namespace flowshard::checkpoint
