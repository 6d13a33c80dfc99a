// flowshard inspect: what a file or folder is, what it holds, and whether it is sound.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/training_checkpoint.h"
#include "core/error.h"
#include "dataset/webdataset.h"
#include "image/image.h"
#include "model_folder/describe_weights.h"
#include "storage/mapped_file.h"
#include "subcommands.h"

namespace flowshard::apps {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct Options {
  fs::path path;
  bool json = false;
};

void inspect_checkpoint(const fs::path& path, Json& report) {
  const auto saved = checkpoint::TrainingCheckpoint::open(path, /*verify_checksums=*/true);
  int64_t parameters = 0;
  for (const auto& entry : saved.parameters()) parameters += c10::multiply_integers(entry.shape);
  report["checkpoint"] = {{"path", path.string()},
                          {"step", saved.state().step},
                          {"samples_seen", saved.state().samples_seen},
                          {"run_id", saved.state().run_id},
                          {"base_model", saved.state().model_path}};
  report["components"]["transformer"] = {{"tensors", saved.parameters().size()}, {"parameters", parameters}};
}

void inspect_tar(const fs::path& path, Json& report) {
  report["kind"] = "WebDataset tar";
  const dataset::ShardIndex index = dataset::index_shard(path);
  report["samples"] = index.samples.size();
  report["bad_samples"] = index.num_bad_samples;
  report["bytes"] = index.size_bytes;
  report["problems"] = index.problems;
  if (index.damaged || index.num_bad_samples > 0) {
    throw DataError("{}: {}", path.string(), index.problems.empty() ? "damaged" : index.problems.front());
  }
  if (index.samples.empty()) throw DataError("{}: holds no sample with picture and caption", path.string());
}

void inspect_picture(const fs::path& path, std::string_view text, Json& report) {
  report["kind"] = "picture";
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  const image::Image picture = image::decode({bytes, text.size()}, path.string());
  report["width"] = picture.width;
  report["height"] = picture.height;
}

bool is_picture(std::string_view text) {
  return text.starts_with("\x89PNG") || text.starts_with("\xff\xd8\xff") ||
         (text.starts_with("RIFF") && text.substr(0, 12).ends_with("WEBP"));
}

bool is_tar(std::string_view text) { return text.size() >= 512 && text.substr(257, 5) == "ustar"; }

void inspect_file(const fs::path& path, Json& report) {
  report["kind"] = "unknown";
  const storage::MappedFile file(path);
  const std::string_view text = file.text();
  const std::string name = path.string();
  if (is_picture(text)) {
    inspect_picture(path, text, report);
  } else if (is_tar(text) || name.ends_with(".tar")) {
    inspect_tar(path, report);
  } else if (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json") ||
             (text.size() > 9 && text[8] == '{')) {
    report["kind"] = "safetensors file";
    describe_weights(path, report);
  } else {
    throw ConfigError("{}: it is no weights file, tar or picture that is known here", name);
  }
}

void inspect_folder(const fs::path& path, Json& report) {
  report["kind"] = "unknown";
  if (fs::exists(path / "model_index.json")) {
    describe_model_folder(path, report);
  } else if (checkpoint::TrainingCheckpoint::is_checkpoint(path)) {
    report["kind"] = "training checkpoint";
    inspect_checkpoint(path, report);
  } else if (fs::is_directory(path / "checkpoints")) {
    report["kind"] = "training run";
    const auto newest = checkpoint::latest_checkpoint(path / "checkpoints");
    if (!newest) throw CheckpointError("{}: the run has no complete checkpoint yet", path.string());
    inspect_checkpoint(*newest, report);
  } else if (fs::exists(path / "config.json")) {
    report["kind"] = "component folder (diffusers)";
    describe_weights(path, report);
  } else {
    throw ConfigError("{}: it is no model folder, training run or checkpoint", path.string());
  }
}

void print_component(const std::string& name, const Json& sizes) {
  std::string line =
      fmt::format("  {:<15} {:>5} tensors, {:.6g} M parameters", name, sizes["tensors"].get<int64_t>(),
                  static_cast<double>(sizes["parameters"].get<int64_t>()) / 1e6);
  if (sizes.contains("bytes")) {
    line += fmt::format(", {:.6g} MB:", static_cast<double>(sizes["bytes"].get<int64_t>()) / 1e6);
    for (const auto& [dtype, bytes] : sizes["bytes_by_dtype"].items()) {
      line += fmt::format(" {} {:.6g} MB", dtype, static_cast<double>(bytes.get<int64_t>()) / 1e6);
    }
  }
  fmt::print("{}\n", line);
}

void print(const Json& report) {
  for (const auto& [key, value] : report.items()) {
    if (key == "components") {
      fmt::print("components:\n");
      for (const auto& [name, sizes] : value.items()) print_component(name, sizes);
    } else if (value.is_object()) {
      fmt::print("{}:\n", key);
      for (const auto& [name, entry] : value.items()) fmt::print("  {}: {}\n", name, entry.dump());
    } else {
      fmt::print("{}: {}\n", key, value.is_string() ? value.get<std::string>() : value.dump());
    }
  }
}

void run(const Options& options) {
  Json report = {{"path", options.path.string()}};
  std::exception_ptr fault;
  try {
    std::error_code error;
    const fs::file_status status = fs::status(options.path, error);
    if (!fs::exists(status)) throw ConfigError("{}: {}", options.path.string(), error.message());
    fs::is_directory(status) ? inspect_folder(options.path, report) : inspect_file(options.path, report);
    report["sound"] = true;
  } catch (const Error& error) {
    report["sound"] = false;
    report["error"] = first_line(error.what());
    fault = std::current_exception();
  }
  if (options.json) {
    fmt::print("{}\n", report.dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    print(report);
  }
  std::fflush(stdout);
  if (fault) std::rethrow_exception(fault);
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* inspect = app.add_subcommand("inspect", "Say what a file or folder is and whether it is sound");
  inspect->add_option("path", options->path, "A weights file, model folder, checkpoint, run, tar or picture")
      ->required();
  inspect->add_flag("--json", options->json, "One JSON object");
  inspect->footer("Example:\n  flowshard inspect flux1-dev.safetensors");
  inspect->callback([options] { run(*options); });
}

}  // namespace flowshard::apps
