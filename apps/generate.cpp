#include <ATen/Context.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "core/error.h"
#include "generate_run.h"
#include "kernels/gpu.h"
#include "subcommands.h"
#include "version.h"

namespace flowshard::apps {
namespace {

using inference::PictureSettings;

struct GenerateOptions {
  GenerateRun run;
  std::filesystem::path output, prompt_file, prompts, from;
  std::string format = "png", low_memory = "none";
  std::vector<std::string> loras;
  inference::PromptLine line;
};

// Takes the settings of the picture, then once more what the command line says.
void take_settings(const PictureSettings& settings, CLI::App& app, GenerateOptions& options) {
  options.line.request = settings.request;
  options.run.settings = settings;
  options.loras.clear();
  for (const inference::LoraOption& lora : settings.loras) {
    options.loras.push_back(fmt::format("{}:{}", lora.path.string(), lora.scale));
  }
  for (CLI::Option* option : app.get_options()) {
    if (option->count() > 0) option->run_callback();
  }
  const auto given = [&](const char* option) { return app.count(option) > 0; };
  if (given("--init-image")) options.line.request.init_image_xxh3.clear();
  if (given("--model") || given("--vae") || given("--text-encoders"))
    options.run.settings.model_fingerprint.clear();
  if (given("--lora")) options.run.settings.lora_fingerprints.clear();
}

// Fills in and checks what follows from several options.
void complete(CLI::App& app, GenerateOptions& options) {
  const auto given = [&](const char* option) { return app.count(option) > 0; };
  PictureSettings& settings = options.run.settings;
  inference::Request& request = options.line.request;
  if (given("--from")) take_settings(inference::read_picture_settings(options.from), app, options);
  if (settings.model.model.empty()) throw ConfigError("--model is required (or --from PICTURE)");
  if (!given("--prompt") && !given("--prompt-file") && !given("--prompts") && !given("--from"))
    throw ConfigError("there is no prompt: give --prompt, --prompt-file, --prompts or --from");
  if (given("--prompt-file")) request.prompt = inference::read_prompt(options.prompt_file);
  inference::check_prompt(request.prompt, "--prompt");
  inference::check_prompt(request.negative_prompt, "--negative-prompt");
  if (settings.device == "cuda") {
    kernels::require_gpu("--device cuda");
    kernels::require_kernels("--device cuda", at::Device(at::kCUDA, 0));
  }
  if (settings.precision.empty()) settings.precision = settings.device == "cuda" ? "bf16" : "fp32";
  settings.version = FLOWSHARD_VERSION;
  options.run.low_memory = options.low_memory == "blocks"     ? inference::LowMemory::kBlocks
                           : options.low_memory == "encoders" ? inference::LowMemory::kEncoders
                                                              : inference::LowMemory::kNone;
  settings.loras.clear();
  for (const std::string& text : options.loras) settings.loras.push_back(inference::LoraOption::parse(text));
}

void plan(CLI::App& app, GenerateOptions& options) {
  GenerateRun& run = options.run;
  if (app.count("--prompts") > 0) {
    run.resumes = true;
    run.pictures = inference::plan_pictures(read_prompt_file(options.prompts, options.line), options.output,
                                            *image::format_of("a." + options.format));
  } else {
    if (!options.output.has_filename())
      throw ConfigError("--output {}: name a .png, .jpg or .webp file", options.output.string());
    options.line.output = options.output.filename();
    run.pictures =
        inference::plan_pictures({options.line}, options.output.parent_path(), image::Format::kPng);
  }
  const bool starts_from_picture =
      std::any_of(run.pictures.begin(), run.pictures.end(),
                  [](const auto& picture) { return !picture.request.init_image.empty(); });
  if (app.count("--strength") > 0 && !starts_from_picture)
    throw ConfigError("--strength is for image to image: give --init-image");
}

void add_model_options(CLI::App& app, GenerateOptions& options) {
  PictureSettings& settings = options.run.settings;
  app.add_option(
      "--model", settings.model.model,
      "A diffusers folder, a training run or checkpoint, or a weights file (flux1-dev.safetensors)");
  app.add_option("--vae", settings.model.vae,
                 "The autoencoder's weights (ae.safetensors), if not the model's");
  app.add_option("--text-encoders", settings.model.text_encoders,
                 "The diffusers folder of text encoders, tokenizers and scheduler, if not the model's");
  app.add_option("--lora", options.loras,
                 "PATH or PATH:SCALE of a LoRA in diffusers, kohya or BFL naming; may be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_flag("--lora-lenient", settings.lora_lenient,
               "Leave out the keys of LoRA files that match nothing");
  app.add_option("--device", settings.device, "cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--precision", settings.precision, "fp32 or bf16 (default: fp32 on cpu, bf16 on cuda)")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  app.add_option(
         "--low-memory", options.low_memory,
         "encoders: text encoders and transformer take turns on the device; blocks: and what does not "
         "fit of the transformer stays in host memory")
      ->check(CLI::IsMember({"none", "encoders", "blocks"}))
      ->capture_default_str();
}

void add_request_options(CLI::App& app, GenerateOptions& options) {
  inference::Request& request = options.line.request;
  CLI::Option* prompt = app.add_option("--prompt", request.prompt, "The prompt");
  CLI::Option* file =
      app.add_option("--prompt-file", options.prompt_file, "A text file that holds one prompt");
  app.add_option(
         "--prompts", options.prompts,
         "A .jsonl file: one object a line with prompt, seed, steps, ... and output; run again, it makes "
         "what is missing")
      ->excludes(prompt)
      ->excludes(file);
  file->excludes(prompt);
  app.add_option("--from", options.from,
                 "A picture made by this command: takes its settings; options beside it override them");
  app.add_option("--negative-prompt", request.negative_prompt, "Used with --true-cfg-scale above 1");
  app.add_option("--true-cfg-scale", request.true_cfg_scale, "Above 1: true classifier-free guidance")
      ->capture_default_str();
  app.add_option("--init-image", request.init_image,
                 "Image to image: the picture to start from, resized to --width x --height");
  app.add_option("--strength", request.strength,
                 "Of image to image, above 0 to 1: how far it may go from that picture")
      ->capture_default_str();
  app.add_option("--height", request.height, "Pixels; rounded down to a multiple of 16")
      ->capture_default_str();
  app.add_option("--width", request.width, "Pixels; rounded down to a multiple of 16")->capture_default_str();
  app.add_option("--steps", request.num_steps, "Euler steps")->capture_default_str();
  app.add_option("--guidance", request.guidance, "Input of guidance-distilled models")->capture_default_str();
  app.add_option("--seed", request.seed, "Image i has seed + i")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--num-images", options.line.num_images, "Images of one prompt")->capture_default_str();
  app.add_option("--max-sequence-length", request.max_sequence_length, "T5 tokens")->capture_default_str();
}

void add_output_options(CLI::App& app, GenerateOptions& options) {
  app.add_option("--output", options.output,
                 "A .png, .jpg or .webp file, replaced if it exists, or a folder with --prompts")
      ->required();
  app.add_option("--format", options.format, "png, jpeg or webp: the pictures of --prompts")
      ->check(CLI::IsMember({"png", "jpeg", "webp"}))
      ->needs("--prompts")
      ->capture_default_str();
  app.add_option("--quality", options.run.settings.quality,
                 "Of JPEG and WebP, 1 to 100; 100 is lossless in WebP")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app.add_option("--preview-every", options.run.preview_every,
                 "Every so many steps, what the picture will be as NAME.preview.png beside it")
      ->check(CLI::PositiveNumber);
  app.add_option("--grid", options.run.grid, "Also one .png of up to 64 of the images, side by side");
  app.add_flag("--json", options.run.json, "One JSON object a line for each image");
}

}  // namespace

void add_generate(CLI::App& app) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* generate = app.add_subcommand("generate", "Make images from prompts and pictures");
  add_model_options(*generate, *options);
  add_request_options(*generate, *options);
  add_output_options(*generate, *options);
  generate->footer(
      "Examples:\n"
      "  flowshard generate --model FLUX.1-dev --prompt \"a red fox in snow\" --device cuda --output "
      "fox.png\n"
      "  flowshard generate --model FLUX.1-dev --prompt \"an oil painting\" --init-image photo.jpg "
      "--strength 0.7 "
      "--output painting.webp\n"
      "  flowshard generate --model FLUX.1-dev --prompts prompts.jsonl --format jpeg --output pictures\n"
      "  flowshard generate --from fox.png --seed 2 --output another-fox.png");
  generate->callback([generate, options] {
    complete(*generate, *options);
    plan(*generate, *options);
    make_pictures(options->run);
  });
}

}  // namespace flowshard::apps
