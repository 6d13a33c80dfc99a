#include "checkpoint/weights.h"

#include <set>

#include "checkpoint/checkpoint_json.h"
#include "core/error.h"

namespace flowshard::checkpoint {
namespace {

namespace fs = std::filesystem;

using FilePointer = std::shared_ptr<const SafetensorsFile>;
using FilesByKey = std::map<std::string, FilePointer>;

constexpr const char* kIndexSuffix = ".safetensors.index.json";

std::vector<std::string> file_names_ending_in(const fs::path& folder, std::string_view suffix) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (name.ends_with(suffix)) names.push_back(std::move(name));
  }
  if (error) throw ConfigError("cannot list {}: {}", folder.string(), error.message());
  std::ranges::sort(names);
  return names;
}

void add_all(FilesByKey& files_by_key, const fs::path& path) {
  const auto file = std::make_shared<const SafetensorsFile>(path);
  for (const auto& [key, info] : file->tensors()) files_by_key.emplace(key, file);
}

// The shard of each key, as an index file maps them.
std::map<std::string, std::string> read_index(const fs::path& index) {
  const nlohmann::json json = read_json(index);
  const auto weight_map = json.is_object() ? json.value("weight_map", nlohmann::json()) : nlohmann::json();
  if (!weight_map.is_object() || weight_map.empty()) {
    throw CheckpointError("{}: it has no weight_map that names a shard for each tensor", index.string());
  }
  std::map<std::string, std::string> shard_of_key;
  for (const auto& [key, shard] : weight_map.items()) {
    const std::string name = shard.is_string() ? shard.get<std::string>() : "";
    if (name.empty() || fs::path(name).filename() != name || name == "." || name == "..") {
      throw CheckpointError("{}: the shard of {} is {}, which is no file name", index.string(),
                            in_quotes(key), shard.dump());
    }
    shard_of_key.emplace(key, name);
  }
  return shard_of_key;
}

// "model-00002-of-00003.safetensors": a shard by its name alone.
bool is_shard_name(const std::string& name) {
  const size_t of = name.rfind("-of-");
  return of != std::string::npos && of > 0 && std::isdigit(static_cast<unsigned char>(name[of - 1]));
}

void require_shards(const fs::path& index, const std::set<std::string>& named) {
  const fs::path folder = index.parent_path();
  std::vector<std::string> absent, unnamed;
  for (const std::string& shard : named) {
    std::error_code ignored;
    if (!fs::exists(folder / shard, ignored)) absent.push_back(shard);
  }
  if (!absent.empty()) {
    throw CheckpointError("{}: {} of the {} shards it names are missing: {}", index.string(), absent.size(),
                          named.size(), fmt::join(absent, ", "));
  }
  for (const std::string& name : file_names_ending_in(folder, ".safetensors")) {
    if (is_shard_name(name) && !named.contains(name)) unnamed.push_back(name);
  }
  if (!unnamed.empty()) {
    throw CheckpointError("{}: it is out of date, shards beside it are not named in it: {}", index.string(),
                          fmt::join(unnamed, ", "));
  }
}

FilesByKey open_sharded(const fs::path& index) {
  const std::map<std::string, std::string> shard_of_key = read_index(index);
  std::set<std::string> shards;
  for (const auto& [key, shard] : shard_of_key) shards.insert(shard);
  require_shards(index, shards);

  FilesByKey files_by_key;
  for (const std::string& shard : shards) {
    const auto file = std::make_shared<const SafetensorsFile>(index.parent_path() / shard);
    for (const auto& [key, info] : file->tensors()) {
      const auto entry = shard_of_key.find(key);
      if (entry == shard_of_key.end() || entry->second != shard) {
        throw CheckpointError("{}: shard {} holds {}, which the index {}", index.string(), shard,
                              in_quotes(key),
                              entry == shard_of_key.end() ? "does not name" : "places in " + entry->second);
      }
      files_by_key.emplace(key, file);
    }
  }
  for (const auto& [key, shard] : shard_of_key) {
    if (!files_by_key.contains(key)) {
      throw CheckpointError("{}: it places {} in {}, which holds no such tensor", index.string(),
                            in_quotes(key), shard);
    }
  }
  return files_by_key;
}

FilesByKey open_folder(const fs::path& folder) {
  const std::vector<std::string> indices = file_names_ending_in(folder, kIndexSuffix);
  if (indices.size() == 1) return open_sharded(folder / indices[0]);
  if (indices.size() > 1) {
    throw ConfigError("{}: holds several indices ({}): keep one", folder.string(), fmt::join(indices, ", "));
  }
  const std::vector<std::string> files = file_names_ending_in(folder, ".safetensors");
  if (files.empty()) throw ConfigError("{}: holds no safetensors file", folder.string());
  if (files.size() > 1) {
    throw ConfigError(
        "{}: holds {} safetensors files but no {} that joins them: name one file, or add the index",
        folder.string(), files.size(), kIndexSuffix);
  }
  FilesByKey files_by_key;
  add_all(files_by_key, folder / files[0]);
  return files_by_key;
}

}  // namespace

Weights Weights::open(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) throw ConfigError("{}: no such file or folder", path.string());
  FilesByKey files_by_key;
  if (fs::is_directory(status)) {
    files_by_key = open_folder(path);
  } else if (path.string().ends_with(kIndexSuffix)) {
    files_by_key = open_sharded(path);
  } else {
    add_all(files_by_key, path);
  }
  Weights weights;
  weights.source_ = path.string();
  if (!files_by_key.empty()) weights.metadata_ = files_by_key.begin()->second->metadata();
  for (auto& [key, file] : files_by_key) weights.stored_.emplace(key, Stored{std::move(file), key});
  return weights;
}

std::vector<std::string> Weights::keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, stored] : stored_) keys.push_back(key);
  return keys;
}

bool Weights::contains(const std::string& key) const { return stored_.contains(key); }

const Weights::Stored& Weights::find(const std::string& key) const {
  const auto found = stored_.find(key);
  if (found == stored_.end()) throw CheckpointError("{}: there is no tensor {}", source_, in_quotes(key));
  return found->second;
}

const TensorInfo& Weights::info(const std::string& key) const {
  const Stored& stored = find(key);
  return stored.file->tensors().at(stored.key);
}

at::Tensor Weights::tensor(const std::string& key) const {
  const Stored& stored = find(key);
  return stored.file->tensor(stored.key);
}

TensorListing Weights::listing() const {
  TensorListing listing{.source = source_, .shapes = {}, .metadata = metadata_};
  for (const auto& [key, stored] : stored_) listing.shapes.emplace(key, info(key).shape);
  return listing;
}

Weights Weights::under(const std::string& prefix) const {
  Weights weights;
  weights.source_ = prefix.empty() ? source_ : fmt::format("{} ({}*)", source_, prefix);
  weights.metadata_ = metadata_;
  for (auto entry = stored_.lower_bound(prefix); entry != stored_.end(); ++entry) {
    if (!entry->first.starts_with(prefix)) break;
    weights.stored_.emplace(entry->first.substr(prefix.size()), entry->second);
  }
  return weights;
}

bool Weights::has_prefix(const std::string& prefix) const {
  const auto first = stored_.lower_bound(prefix);
  return first != stored_.end() && first->first.starts_with(prefix);
}

}  // namespace flowshard::checkpoint
