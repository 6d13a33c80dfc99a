// The list of a checkpoint's files with their sizes and checksums.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "storage/atomic_file.h"

namespace flowshard::checkpoint {

using Manifest = std::map<std::string, storage::FileDigest>;  // by file name

nlohmann::json to_json(const storage::FileDigest& digest);

/// Throws CheckpointError, which begins with `source`.
storage::FileDigest digest_from_json(const nlohmann::json& json, const std::string& source);

std::string to_text(const Manifest& manifest);

/// Reads manifest.json in `folder`. Throws CheckpointError for another format or version.
Manifest read_manifest(const std::filesystem::path& folder);

/// Throws CheckpointError that lists every file of the manifest which is absent, of another size or (only if
/// `verify_checksums`) has other bytes.
void verify(const Manifest& manifest, const std::filesystem::path& folder, bool verify_checksums);

}  // namespace flowshard::checkpoint
