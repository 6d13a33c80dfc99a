#include "model_folder/export_checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>

#include "core/error.h"
#include "core/file_descriptor.h"
#include "model_folder/convert_weights.h"
#include "model_folder/unpublished_path.h"
#include "model_folder/write_verified.h"
#include "storage/atomic_file.h"

namespace flowshard {
namespace {

namespace fs = std::filesystem;
using checkpoint::TensorSpec;
using checkpoint::TrainingCheckpoint;

constexpr std::array kOtherParts = {"scheduler",    "tokenizer",      "tokenizer_2",
                                    "text_encoder", "text_encoder_2", "vae"};
constexpr const char* kIndexName = "model_index.json";

models::FlowTransformerConfig config_of(const TrainingCheckpoint& saved) {
  const fs::path file = fs::path(saved.state().model_path) / "transformer" / "config.json";
  if (fs::exists(file)) return models::FlowTransformerConfig::from_diffusers(file);
  TensorListing listing{.source = fmt::format("{} (there is no {})", saved.path().string(), file.string()),
                        .shapes = {},
                        .metadata = {}};
  for (const auto& entry : saved.parameters()) listing.shapes.emplace(entry.parameter, entry.shape);
  return models::FlowTransformerConfig::from_bfl(listing);
}

bool is_pipeline(const fs::path& folder) {
  bool whole = fs::is_regular_file(folder / kIndexName);
  for (const char* part : kOtherParts) whole = whole && fs::is_directory(folder / part);
  return whole;
}

void link_or_copy(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::create_hard_link(from, to, error);
  if (!error) return;
  fs::copy_file(from, to);
  const FileDescriptor file(::open(to.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid() || ::fsync(file.get()) != 0) {
    throw CheckpointError("cannot write {}: {}", to.string(), error_text(errno));
  }
}

// Files by what they are, not by symbolic links: those of a download cache lead out of the folder.
void copy_folder(const fs::path& from, const fs::path& to) {
  fs::create_directory(to);
  for (const auto& entry : fs::directory_iterator(from)) {
    const fs::path target = to / entry.path().filename();
    if (entry.is_directory()) {
      copy_folder(entry.path(), target);
    } else if (entry.is_regular_file()) {
      link_or_copy(fs::canonical(entry.path()), target);
    }
  }
  storage::sync_folder(to);
}

void export_pipeline(const TrainingCheckpoint& saved, const std::string& state,
                     const models::FlowTransformerConfig& config, const ExportOptions& options) {
  const fs::path base = saved.state().model_path;
  const UnpublishedPath folder(options.output);
  folder.make_folder();
  convert(
      saved, state, config,
      {.output = folder.temporary() / "transformer", .to = KeyFormat::kDiffusers, .dtype = options.dtype});
  try {
    link_or_copy(fs::canonical(base / kIndexName), folder.temporary() / kIndexName);
    for (const char* part : kOtherParts) copy_folder(base / part, folder.temporary() / part);
  } catch (const fs::filesystem_error& error) {
    throw CheckpointError("cannot copy {} to {}: {}", error.path1().string(), options.output.string(),
                          error.code().message());
  } catch (const DataError& error) {
    throw CheckpointError("{}", error.what());
  }
  folder.publish();
}

void export_full_state(const TrainingCheckpoint& saved, const ExportOptions& options) {
  std::vector<TensorSpec> specs;
  for (const auto& [group, states] : saved.layout().groups) {
    for (const checkpoint::StateLayout& state : states) {
      for (const auto& entry : group.entries) {
        specs.push_back(
            {state.name + "/" + entry.parameter, options.dtype.value_or(state.dtype), entry.shape});
      }
    }
  }
  const auto load = [&](const TensorSpec& spec) {
    const size_t slash = spec.name.find('/');
    return saved.read_parameter(spec.name.substr(0, slash), spec.name.substr(slash + 1)).to(spec.dtype);
  };
  const UnpublishedPath file(options.output, options.replaces_file);
  write_verified(file.temporary(), specs,
                 {{"format", "pt"},
                  {"step", std::to_string(saved.state().step)},
                  {"samples_seen", std::to_string(saved.state().samples_seen)},
                  {"config", saved.state().config}},
                 load);
  file.publish();
}

}  // namespace

std::string export_checkpoint(const TrainingCheckpoint& saved, const ExportOptions& options) {
  if (options.to == ExportFormat::kFullState) {
    if (options.averaged)
      throw ConfigError("--ema: a full state holds the weights and their averages anyway");
    export_full_state(saved, options);
    return "";
  }
  const std::string state = options.averaged ? "ema" : "model";
  if (!saved.has(state, saved.parameters().at(0).parameter)) {
    throw ConfigError("{}: it holds no averaged weights (ema.decay was 0): leave out --ema",
                      saved.path().string());
  }
  const models::FlowTransformerConfig config = config_of(saved);
  if (options.to == ExportFormat::kBfl) {
    convert(saved, state, config,
            {.output = options.output,
             .to = KeyFormat::kBfl,
             .dtype = options.dtype,
             .replaces_file = options.replaces_file});
    return "";
  }
  if (is_pipeline(saved.state().model_path)) {
    export_pipeline(saved, state, config, options);
    return "";
  }
  convert(saved, state, config,
          {.output = options.output, .to = KeyFormat::kDiffusers, .dtype = options.dtype});
  return fmt::format("the base model {} is not there: {} is the transformer alone, not a whole pipeline",
                     saved.state().model_path, options.output.string());
}

}  // namespace flowshard
