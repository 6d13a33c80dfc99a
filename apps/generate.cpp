#include <ATen/Context.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/error_context.h"
#include "image/grid.h"
#include "image/image.h"
#include "inference/pipeline.h"
#include "models/tokenizer/unicode.h"
#include "storage/atomic_file.h"
#include "storage/writable_folder.h"
#include "subcommands.h"

namespace flowshard::apps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kGridImages = 64;
constexpr size_t kPreparedAtOnce = 256;  // requests whose encoded prompts wait in host memory, 4 MB each
constexpr int kGridColumns = 8;

struct GenerateOptions {
  std::filesystem::path model, vae, text_encoders, output, prompt_file, prompts, grid;
  std::string prompt, device = "cpu", precision, low_memory = "none";
  int64_t num_images = 1;
  std::vector<std::string> loras;
  bool lora_lenient = false;
  bool json = false;
  inference::Request request;
};

/// One image to make and the file it goes to.
struct Job {
  inference::Request request;
  std::filesystem::path file;
};

constexpr size_t kMaxPromptBytes = size_t{1} << 20;
constexpr int64_t kMaxImages = 100'000;

std::ifstream open_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream || std::filesystem::is_directory(path)) throw ConfigError("{}: cannot be read", path.string());
  return stream;
}

// `source` says where the text is from.
void require_text(const std::string& text, const std::string& source) {
  if (text.size() > kMaxPromptBytes) throw ConfigError("{}: a prompt longer than 1 MiB", source);
  try {
    models::unicode::check_utf8(text);
  } catch (const ConfigError&) {
    rethrow_within(source);
  }
  if (text.find('\0') != std::string::npos) throw ConfigError("{}: holds a NUL byte: is it a text?", source);
}

std::string read_prompt(const std::filesystem::path& path) {
  std::ifstream stream = open_file(path);
  std::string text(kMaxPromptBytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(stream.gcount()));
  require_text(text, path.string());
  while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  return text;
}

// As json.value(), but a number with a fraction is no integer.
int64_t integer_in(const nlohmann::json& object, const char* key, int64_t fallback) {
  const auto found = object.find(key);
  if (found == object.end()) return fallback;
  if (!found->is_number_integer()) throw ConfigError("{} is {}: it must be an integer", key, found->dump());
  return found->get<int64_t>();
}

// One JSON object a line: {"prompt": ..., and any of height, width, steps, guidance, seed, negative_prompt,
// true_cfg_scale}. Other keys are the user's own.
std::vector<inference::Request> read_requests(const std::filesystem::path& path,
                                              const inference::Request& defaults) {
  std::vector<inference::Request> requests;
  std::ifstream stream = open_file(path);
  std::string line;
  for (int number = 1; std::getline(stream, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    try {
      const auto object = nlohmann::json::parse(line);
      inference::Request request = defaults;
      request.prompt = object.at("prompt").get<std::string>();
      request.negative_prompt = object.value("negative_prompt", defaults.negative_prompt);
      request.true_cfg_scale = object.value("true_cfg_scale", defaults.true_cfg_scale);
      request.height = integer_in(object, "height", defaults.height);
      request.width = integer_in(object, "width", defaults.width);
      request.num_steps = integer_in(object, "steps", defaults.num_steps);
      request.guidance = object.value("guidance", defaults.guidance);
      const int64_t seed = integer_in(object, "seed", static_cast<int64_t>(defaults.seed));
      if (seed < 0) throw ConfigError("seed is {}: it must be at least 0", seed);
      request.seed = static_cast<uint64_t>(seed);
      require_text(request.prompt, "prompt");
      require_text(request.negative_prompt, "negative_prompt");
      requests.push_back(request);
    } catch (const ConfigError&) {
      rethrow_within(fmt::format("{}:{}", path.string(), number));
    } catch (const nlohmann::json::exception& error) {
      throw ConfigError("{}:{}: not a prompt object: {}", path.string(), number, error.what());
    }
  }
  if (requests.empty()) throw ConfigError("{}: holds no prompt", path.string());
  return requests;
}

std::vector<Job> plan(const GenerateOptions& options) {
  if (options.num_images < 1 || options.num_images > kMaxImages)
    throw ConfigError("--num-images is {}: it must be from 1 to {}", options.num_images, kMaxImages);
  require_text(options.request.negative_prompt, "--negative-prompt");
  std::vector<Job> jobs;
  if (!options.prompts.empty()) {
    for (const inference::Request& request : read_requests(options.prompts, options.request)) {
      jobs.push_back({request, options.output / fmt::format("{:05}.png", jobs.size())});
    }
    return jobs;
  }
  if (options.output.extension() != ".png") {
    throw ConfigError("--output {}: name a .png file", options.output.string());
  }
  inference::Request request = options.request;
  require_text(options.prompt, "--prompt");
  request.prompt = options.prompt_file.empty() ? options.prompt : read_prompt(options.prompt_file);
  for (int64_t i = 0; i < options.num_images; ++i) {
    std::filesystem::path file = options.output;
    if (options.num_images > 1)
      file.replace_filename(fmt::format("{}_{}.png", options.output.stem().string(), i));
    jobs.push_back({request, file});
    ++request.seed;
  }
  return jobs;
}

inference::PipelineOptions pipeline_options(const GenerateOptions& options) {
  const bool cuda = options.device == "cuda";
  if (cuda && !at::hasCUDA()) throw ConfigError("--device cuda: no CUDA device is visible: use --device cpu");
  const std::string precision = !options.precision.empty() ? options.precision : cuda ? "bf16" : "fp32";
  std::vector<inference::LoraOption> loras;
  for (const std::string& text : options.loras) loras.push_back(inference::LoraOption::parse(text));
  return {.model = {.model = options.model, .vae = options.vae, .text_encoders = options.text_encoders},
          .device = cuda ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU),
          .dtype = precision == "bf16" ? at::kBFloat16 : at::kFloat,
          .loras = loras,
          .lora_lenient = options.lora_lenient,
          .low_memory = options.low_memory == "blocks"     ? inference::LowMemory::kBlocks
                        : options.low_memory == "encoders" ? inference::LowMemory::kEncoders
                                                           : inference::LowMemory::kNone};
}

void warn(const std::string& message) { fmt::print(stderr, "flowshard generate: warning: {}\n", message); }

void report_loras(const inference::Pipeline& pipeline) {
  for (const inference::LoadedLora& lora : pipeline.loras()) {
    const auto& parsed = lora.parsed;
    fmt::print(stderr, "flowshard generate: LoRA {} (scale {}): {} keys matched, {} unmatched\n",
               lora.option.path.string(), lora.option.scale, parsed.num_matched, parsed.unmatched.size());
    if (!parsed.unmatched.empty()) {
      warn(fmt::format("{}: {} keys match no linear of this model and are left out, among them {}",
                       lora.option.path.string(), parsed.unmatched.size(), parsed.unmatched.front()));
    }
  }
}

void report_gpu(const inference::Pipeline& pipeline) {
  const inference::PipelineReport& report = pipeline.report();
  const auto gigabytes = [](int64_t bytes) { return static_cast<double>(bytes) / 1e9; };
  fmt::print(stderr, "flowshard generate: loaded {:.1f} GB in {:.1f} s ({:.1f} GB/s)\n",
             gigabytes(report.loaded_bytes), report.load_seconds,
             gigabytes(report.loaded_bytes) / report.load_seconds);
  const auto phase = [&](const char* name, const inference::PhaseReport& of) {
    fmt::print(stderr, "flowshard generate: {}: {:.2f} s, at most {:.1f} GB of GPU memory\n", name,
               of.seconds, gigabytes(of.peak_bytes));
  };
  phase("encoding text", report.encode);
  phase("denoising", report.denoise);
  phase("decoding", report.decode);
  if (report.num_streamed_blocks > 0) {
    fmt::print(stderr, "flowshard generate: {} blocks came from host memory in every step\n",
               report.num_streamed_blocks);
  }
}

void check_output(const std::vector<Job>& jobs, const std::filesystem::path& grid) {
  for (const Job& job : jobs) storage::require_writable_file(job.file, "--output");
  if (!grid.empty()) storage::require_writable_file(grid, "--grid");
}

void make_folder_of(const std::filesystem::path& file) {
  if (!file.has_parent_path()) return;
  std::error_code failure;
  std::filesystem::create_directories(file.parent_path(), failure);
  if (failure)
    throw DataError("cannot make the folder {}: {}", file.parent_path().string(), failure.message());
}

void write_png(const std::filesystem::path& path, const image::Image& image) {
  make_folder_of(path);
  const std::vector<uint8_t> bytes = image::encode_png(image);
  storage::AtomicFile file(path);
  file.write(std::as_bytes(std::span(bytes)));
  file.publish();
}

// Whether image i of n is one of the at most kGridImages, evenly spread, that the grid shows.
bool is_in_grid(size_t i, size_t n) {
  return n <= kGridImages || i * kGridImages / n != (i + 1) * kGridImages / n;
}

void generate(const GenerateOptions& options) {
  std::vector<Job> jobs = plan(options);
  check_output(jobs, options.grid);
  inference::PipelineOptions of_pipeline = pipeline_options(options);
  of_pipeline.max_height = of_pipeline.max_width = 0;
  for (const Job& job : jobs) {
    of_pipeline.max_height = std::max(of_pipeline.max_height, job.request.height);
    of_pipeline.max_width = std::max(of_pipeline.max_width, job.request.width);
  }
  inference::Pipeline pipeline(of_pipeline);
  if (!pipeline.found().empty()) fmt::print(stderr, "flowshard generate: {}\n", pipeline.found());
  report_loras(pipeline);
  for (Job& job : jobs) {
    const inference::Request asked = job.request;
    job.request = pipeline.validated(asked);
    if (job.request.height != asked.height || job.request.width != asked.width) {
      warn(fmt::format("{}x{} (height x width) is rounded down to {}x{}: sizes are multiples of {}",
                       asked.height, asked.width, job.request.height, job.request.width,
                       pipeline.size_multiple()));
    }
    const std::string cut = pipeline.truncated_words(job.request).t5;
    if (!cut.empty()) {
      warn(fmt::format("the prompt is longer than {} T5 tokens; cut: \"{}\"", job.request.max_sequence_length,
                       cut));
    }
  }
  std::vector<image::Image> grid;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const Job& job = jobs[i];
    if (i % kPreparedAtOnce == 0) {
      std::vector<inference::Request> requests;
      for (size_t j = i; j < std::min(jobs.size(), i + kPreparedAtOnce); ++j)
        requests.push_back(jobs[j].request);
      pipeline.prepare(requests);
    }
    const auto start = Clock::now();
    const image::Image image = pipeline.generate(job.request);
    write_png(job.file, image);
    if (!options.grid.empty() && is_in_grid(i, jobs.size())) grid.push_back(image);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (options.json) {
      const nlohmann::json line = {{"file", job.file.string()},  {"prompt", job.request.prompt},
                                   {"seed", job.request.seed},   {"height", job.request.height},
                                   {"width", job.request.width}, {"seconds", seconds}};
      fmt::print("{}\n", line.dump());
    } else {
      fmt::print("[{}/{}] {} ({}x{}, seed {}, {:.2f} s)\n", i + 1, jobs.size(), job.file.string(),
                 job.request.height, job.request.width, job.request.seed, seconds);
    }
    std::fflush(stdout);
  }
  if (options.device == "cuda") report_gpu(pipeline);
  if (!grid.empty()) write_png(options.grid, image::grid(grid, kGridColumns));
}

}  // namespace

void add_generate(CLI::App& app) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* generate_app = app.add_subcommand("generate", "Make images from prompts");
  inference::Request& request = options->request;
  generate_app
      ->add_option(
          "--model", options->model,
          "A diffusers folder, a training run or checkpoint, or a weights file (flux1-dev.safetensors)")
      ->required();
  generate_app->add_option("--vae", options->vae,
                           "The autoencoder's weights (ae.safetensors), if not the model's");
  generate_app->add_option(
      "--text-encoders", options->text_encoders,
      "The diffusers folder of text encoders, tokenizers and scheduler, if not the model's");
  CLI::Option_group* source = generate_app->add_option_group("prompt");
  source->add_option("--prompt", options->prompt, "The prompt");
  source->add_option("--prompt-file", options->prompt_file, "A text file that holds one prompt");
  source->add_option("--prompts", options->prompts,
                     "A .jsonl file: one object a line with prompt, seed, steps, ...");
  source->require_option(1);
  generate_app->add_option("--negative-prompt", request.negative_prompt,
                           "Used with --true-cfg-scale above 1");
  generate_app
      ->add_option("--true-cfg-scale", request.true_cfg_scale, "Above 1: true classifier-free guidance")
      ->capture_default_str();
  generate_app->add_option("--height", request.height, "Pixels; rounded down to a multiple of 16")
      ->capture_default_str();
  generate_app->add_option("--width", request.width, "Pixels; rounded down to a multiple of 16")
      ->capture_default_str();
  generate_app->add_option("--steps", request.num_steps, "Euler steps")->capture_default_str();
  generate_app->add_option("--guidance", request.guidance, "Input of guidance-distilled models")
      ->capture_default_str();
  generate_app->add_option("--seed", request.seed, "Image i has seed + i")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  generate_app->add_option("--num-images", options->num_images, "Images of one prompt")
      ->capture_default_str();
  generate_app->add_option("--max-sequence-length", request.max_sequence_length, "T5 tokens")
      ->capture_default_str();
  generate_app
      ->add_option("--lora", options->loras,
                   "PATH or PATH:SCALE of a LoRA in diffusers, kohya or BFL naming; may be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  generate_app->add_flag("--lora-lenient", options->lora_lenient,
                         "Leave out the keys of LoRA files that match nothing");
  generate_app->add_option("--device", options->device, "cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  generate_app
      ->add_option("--precision", options->precision, "fp32 or bf16 (default: fp32 on cpu, bf16 on cuda)")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  generate_app
      ->add_option(
          "--low-memory", options->low_memory,
          "encoders: text encoders and transformer take turns on the device; blocks: and what does not "
          "fit of the transformer stays in host memory")
      ->check(CLI::IsMember({"none", "encoders", "blocks"}))
      ->capture_default_str();
  generate_app->add_option("--output", options->output, "A .png file, or a folder with --prompts")
      ->required();
  generate_app->add_option("--grid", options->grid, "Also one .png of up to 64 of the images, side by side");
  generate_app->add_flag("--json", options->json, "One JSON object a line for each image");
  generate_app->footer(
      "Example:\n  flowshard generate --model FLUX.1-dev --prompt \"a red fox in snow\" --device cuda "
      "--output fox.png");
  generate_app->callback([options] { generate(*options); });
}

}  // namespace flowshard::apps
