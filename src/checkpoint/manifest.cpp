#include "checkpoint/manifest.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <vector>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_json.h"
#include "core/error.h"
#include "storage/mapped_file.h"

namespace flowshard::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using storage::FileDigest;

constexpr const char* kFormat = "flowshard-training-checkpoint";
constexpr int kVersion = 2, kOldestVersion = 1;

// What is wrong with one file, in words; empty if nothing is.
std::string fault_of(const fs::path& path, const FileDigest& wanted, bool verify_checksum) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (error) return fmt::format("{} is missing", path.filename().string());
  if (static_cast<int64_t>(size) != wanted.size_bytes) {
    return fmt::format("{} has {} bytes instead of {}", path.filename().string(), size, wanted.size_bytes);
  }
  if (verify_checksum && storage::digest_of(storage::MappedFile(path).bytes()) != wanted) {
    return fmt::format("{} has other bytes than were written", path.filename().string());
  }
  return "";
}

}  // namespace

Json to_json(const FileDigest& digest) {
  return {{"size_bytes", digest.size_bytes}, {"xxh3", fmt::format("{:016x}", digest.checksum)}};
}

FileDigest digest_from_json(const Json& json, const std::string& source) {
  try {
    FileDigest digest{.size_bytes = json.at("size_bytes").get<int64_t>(), .checksum = 0};
    const auto text = json.at("xxh3").get<std::string>();
    const char* end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data(), end, digest.checksum, 16);
    if (parsed.ec == std::errc() && parsed.ptr == end) return digest;
  } catch (const Json::exception&) {  // said below
  }
  throw CheckpointError("{}: {} is no size and checksum", source, json.dump());
}

std::string to_text(const Manifest& manifest) {
  Json files = Json::object();
  for (const auto& [name, digest] : manifest) files[name] = to_json(digest);
  return Json{{"format", kFormat}, {"version", kVersion}, {"files", std::move(files)}}.dump(1) + "\n";
}

Manifest read_manifest(const fs::path& folder) {
  const fs::path path = folder / kManifestName;
  const Json json = read_json(path);
  if (!json.is_object() || json.value("format", Json()) != kFormat ||
      !json.value("files", Json()).is_object()) {
    throw CheckpointError("{}: it is no manifest of a training checkpoint", path.string());
  }
  const Json version = json.value("version", Json());
  if (!version.is_number_integer() || version < kOldestVersion || version > kVersion) {
    throw CheckpointError(
        "{}: format version {} cannot be read by this program, which knows versions {} to {}", path.string(),
        version.dump(), kOldestVersion, kVersion);
  }
  Manifest manifest;
  for (const auto& [name, digest] : json["files"].items()) {
    if (fs::path(name).filename() != name) {
      throw CheckpointError("{}: {} is no file name", path.string(), in_quotes(name));
    }
    manifest.emplace(name, digest_from_json(digest, path.string()));
  }
  return manifest;
}

void verify(const Manifest& manifest, const fs::path& folder, bool verify_checksums) {
  std::vector<std::string> faults;
  for (const auto& [name, digest] : manifest) {
    if (std::string fault = fault_of(folder / name, digest, verify_checksums); !fault.empty()) {
      faults.push_back(std::move(fault));
    }
  }
  if (!faults.empty()) throw CheckpointError("{}: damaged: {}", folder.string(), fmt::join(faults, ", "));
}

}  // namespace flowshard::checkpoint
