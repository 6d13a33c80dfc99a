#include "inference/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "storage/atomic_file.h"
#include "storage/mapped_file.h"

namespace flowshard::inference {
namespace {

namespace fs = std::filesystem;

constexpr size_t kWholeBytes = size_t{1} << 20;
constexpr size_t kSampleBytes = 4096;
constexpr size_t kNumSamples = 257;

constexpr const char* kModelParts[] = {
    "scheduler", "text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2", "transformer", "vae"};

bool counts(const fs::path& file) {
  const fs::path extension = file.extension();
  return extension == ".safetensors" || extension == ".json" || extension == ".model" || extension == ".txt";
}

// The files that count directly in `folder`, sorted by name.
std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (entry.is_regular_file(error) && counts(entry.path())) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<fs::path> files_of(const fs::path& path) {
  if (!fs::is_directory(path)) return {path};
  std::vector<fs::path> files;
  for (const char* part : kModelParts) {
    const std::vector<fs::path> of_part = files_in(path / part);
    files.insert(files.end(), of_part.begin(), of_part.end());
  }
  return files.empty() ? files_in(path) : files;
}

std::string line_of(const fs::path& file) {
  const storage::MappedFile mapped(file);
  const std::string_view text = mapped.text();
  std::string sampled;
  if (text.size() > kWholeBytes) {
    for (size_t i = 0; i < kNumSamples; ++i) {
      sampled += text.substr((text.size() - kSampleBytes) / (kNumSamples - 1) * i, kSampleBytes);
    }
  }
  const std::string_view bytes = sampled.empty() ? text : sampled;
  return fmt::format("{} {} {:016x}\n", file.filename().string(), text.size(),
                     storage::digest_of(std::as_bytes(std::span(bytes))).checksum);
}

}  // namespace

std::string fingerprint(const std::vector<fs::path>& paths) {
  std::string lines;
  std::set<fs::path> seen;
  for (const fs::path& path : paths) {
    if (path.empty() || !seen.insert(fs::absolute(path / ".").lexically_normal()).second) continue;
    for (const fs::path& file : files_of(path)) lines += line_of(file);
  }
  return fmt::format("{:016x}", storage::digest_of(std::as_bytes(std::span(lines))).checksum);
}

}  // namespace flowshard::inference
