// flowshard convert: weights of a transformer or an autoencoder between the official format and that of
// diffusers.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>

#include "core/error.h"
#include "model_folder/convert_weights.h"
#include "subcommands.h"

namespace flowshard::apps {
namespace {

namespace fs = std::filesystem;

struct Options {
  fs::path input, output;
  std::string to, component, dtype;
  bool replaces_file = false;
};

// The component that the input holds, if it holds one only.
std::string component_of(const Options& options) {
  const TensorListing listing = checkpoint::Weights::open(options.input).listing();
  if (models::is_flow_transformer_diffusers(listing)) return "transformer";
  if (models::is_autoencoder_diffusers(listing)) return "vae";
  const SingleFile parts = SingleFile::split(checkpoint::Weights::open(options.input));
  if (parts.transformer && parts.autoencoder) {
    throw ConfigError("{}: it holds a transformer and an autoencoder: name one with --component",
                      options.input.string());
  }
  if (!parts.transformer && !parts.autoencoder) {
    throw ConfigError(
        "{}: it holds neither a FLUX transformer nor an autoencoder (flowshard inspect says what it is)",
        options.input.string());
  }
  return parts.transformer ? "transformer" : "vae";
}

void run(Options options) {
  if (fs::exists(options.input / "model_index.json")) {
    if (options.component.empty()) {
      throw ConfigError("{}: a model folder: name --component transformer or vae", options.input.string());
    }
    options.input /= options.component;
  }
  if (options.component.empty()) options.component = component_of(options);
  ConvertOptions convert_options{.output = options.output,
                                 .to = options.to == "bfl" ? KeyFormat::kBfl : KeyFormat::kDiffusers,
                                 .dtype = {},
                                 .replaces_file = options.replaces_file};
  if (!options.dtype.empty()) {
    convert_options.dtype = options.dtype == "bf16"   ? at::kBFloat16
                            : options.dtype == "fp16" ? at::kHalf
                                                      : at::kFloat;
  }
  if (options.component == "transformer") {
    convert(TransformerFiles::open(options.input), convert_options);
  } else {
    convert(AutoencoderFiles::open(options.input), convert_options);
  }
  fmt::print("{}\n", options.output.string());
}

}  // namespace

void add_convert(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* convert =
      app.add_subcommand("convert", "Convert weights between the official format and diffusers");
  convert->add_option("--input", options->input, "A weights file, a component's folder or a model folder")
      ->required();
  convert->add_option("--output", options->output, "bfl: a .safetensors file; diffusers: a new folder")
      ->required();
  convert->add_option("--to", options->to, "bfl (flux1-dev.safetensors, ae.safetensors) or diffusers")
      ->check(CLI::IsMember({"bfl", "diffusers"}))
      ->required();
  convert->add_option("--component", options->component, "transformer or vae, where the input holds both")
      ->check(CLI::IsMember({"transformer", "vae"}));
  convert->add_option("--dtype", options->dtype, "fp32, bf16 or fp16 (default: as stored, bit for bit)")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  convert->add_flag("--force", options->replaces_file, "Replace a file that exists; a folder never is");
  convert->footer(
      "Example:\n  flowshard convert --input flux1-dev.safetensors --output transformer --to diffusers");
  convert->callback([options] { run(*options); });
}

}  // namespace flowshard::apps
