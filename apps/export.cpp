// flowshard export: the weights of a training checkpoint in the formats of others.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "checkpoint/checkpoint_folder.h"
#include "core/error.h"
#include "core/standard_streams.h"
#include "model_folder/export_checkpoint.h"
#include "model_folder/unpublished_path.h"
#include "storage/writable_folder.h"
#include "subcommands.h"

namespace flowshard::apps {
namespace {

namespace fs = std::filesystem;

struct Options {
  fs::path checkpoint, output;
  std::string to, dtype;
  bool averaged = false, replaces_file = false;
};

bool lies_in(const fs::path& path, const fs::path& folder) {
  const fs::path relative = fs::weakly_canonical(path).lexically_relative(fs::weakly_canonical(folder));
  return !relative.empty() && *relative.begin() != "..";
}

void run(const Options& options) {
  const std::map<std::string, ExportFormat> formats = {{"bfl", ExportFormat::kBfl},
                                                       {"diffusers", ExportFormat::kDiffusers},
                                                       {"full-state", ExportFormat::kFullState}};
  const std::map<std::string, at::ScalarType> dtypes = {
      {"fp32", at::kFloat}, {"bf16", at::kBFloat16}, {"fp16", at::kHalf}};
  ExportOptions export_options{.output = options.output,
                               .to = formats.at(options.to),
                               .dtype = {},
                               .averaged = options.averaged,
                               .replaces_file = options.replaces_file};
  if (!options.dtype.empty()) export_options.dtype = dtypes.at(options.dtype);
  require_free_path(options.output, options.replaces_file && export_options.to != ExportFormat::kDiffusers);
  storage::require_writable_folder(options.output.parent_path(), "--output");
  if (!fs::is_directory(options.checkpoint)) {
    throw ConfigError("{}: there is no such checkpoint folder", options.checkpoint.string());
  }
  const fs::path folder =
      checkpoint::latest_checkpoint(options.checkpoint / "checkpoints").value_or(options.checkpoint);
  if (lies_in(options.output, folder)) {
    throw ConfigError("--output: {} lies in the checkpoint itself: choose another place",
                      options.output.string());
  }
  const auto saved = checkpoint::TrainingCheckpoint::open(folder, /*verify_checksums=*/true);
  const std::string note = export_checkpoint(saved, export_options);
  if (!note.empty()) print_line("flowshard export: warning: {}", note);
  fmt::print("{}\n", options.output.string());
}

}  // namespace

void add_export(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("export", "Write the weights of a training checkpoint for other programs");
  command
      ->add_option("CHECKPOINT", options->checkpoint,
                   "A checkpoint, or the output folder of a run: its newest one")
      ->required();
  command
      ->add_option("--to", options->to,
                   "bfl: a .safetensors file of the official code; diffusers: a new folder, a whole pipeline "
                   "if the base "
                   "model is still there; full-state: a .safetensors file with optimizer state and averages")
      ->check(CLI::IsMember({"bfl", "diffusers", "full-state"}))
      ->required();
  command->add_option("--output", options->output, "The file or folder to write")->required();
  command->add_option("--dtype", options->dtype, "fp32, bf16 or fp16 (default: as stored, bit for bit)")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  command->add_flag("--ema", options->averaged, "The averaged weights");
  command->add_flag("--force", options->replaces_file, "Replace a file that exists; a folder never is");
  command->footer(
      "Example:\n  flowshard export runs/a/checkpoints/step-00000200 --to diffusers --output flux-a --dtype "
      "bf16");
  command->callback([options] { run(*options); });
}

}  // namespace flowshard::apps
