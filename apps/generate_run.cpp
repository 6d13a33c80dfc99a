#include "generate_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "core/error.h"
#include "core/error_context.h"
#include "core/standard_streams.h"
#include "generate_report.h"
#include "image/grid.h"
#include "inference/fingerprint.h"
#include "inference/pipeline.h"
#include "storage/atomic_file.h"
#include "storage/mapped_file.h"
#include "storage/writable_folder.h"

namespace flowshard::apps {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using inference::PictureSettings;
using inference::PlannedPicture;

constexpr size_t kGridImages = 64;
constexpr int kGridColumns = 8;
constexpr double kSeenStretch = 0.05;
constexpr size_t kPreparedAtOnce = 256;  // requests whose encoded prompts wait in host memory, 4 MB each

void warn(const std::string& message) { print_line("flowshard generate: warning: {}", message); }

PictureSettings settings_of(const GenerateRun& run, const PlannedPicture& picture) {
  PictureSettings settings = run.settings;
  settings.request = picture.request;
  return settings;
}

fs::path preview_of(fs::path file) { return file.replace_extension(".preview.png"); }

// No file may be written over another of this run, nor over the picture it starts from.
void check_output(const GenerateRun& run) {
  const auto place = [](const fs::path& file) { return fs::absolute(file).lexically_normal(); };
  std::set<fs::path> pictures;
  for (const PlannedPicture& picture : run.pictures) {
    storage::require_writable_file(picture.file, "--output");
    std::error_code error;
    if (fs::equivalent(picture.file, picture.request.init_image, error))
      throw ConfigError("output {}: it is the init image: name another file", picture.file.string());
    pictures.insert(place(picture.file));
  }
  for (const PlannedPicture& picture : run.pictures) {
    const fs::path preview = preview_of(picture.file);
    if (run.preview_every > 0 && pictures.contains(place(preview)))
      throw ConfigError("output {}: previews of {} have this name", preview.string(), picture.file.string());
  }
  if (run.grid.empty()) return;
  storage::require_writable_file(run.grid, "--grid");
  if (image::format_of(run.grid) != image::Format::kPng)
    throw ConfigError("--grid {}: name a .png file", run.grid.string());
  if (pictures.contains(place(run.grid)))
    throw ConfigError("--grid {}: a picture of the run has this name", run.grid.string());
}

// Looks at the files of the model and of the LoRAs, and gives the settings their fingerprints.
void identify_files(PictureSettings& settings, const std::vector<fs::path>& model_files) {
  const auto identify = [](std::string& known, const std::vector<fs::path>& files) {
    const std::string found = inference::fingerprint(files);
    if (!known.empty() && known != found) {
      warn(fmt::format("{}: has changed since the picture of --from was made: this one will be another",
                       files.front().string()));
    }
    known = found;
  };
  identify(settings.model_fingerprint, model_files);
  settings.model.model = model_files.front();
  settings.lora_fingerprints.resize(settings.loras.size());
  for (size_t i = 0; i < settings.loras.size(); ++i) {
    if (fs::is_regular_file(settings.loras[i].path))
      identify(settings.lora_fingerprints[i], {settings.loras[i].path});
  }
}

void warn_of_changed_sizes(const PlannedPicture& picture, const inference::Request& asked,
                           int64_t size_multiple) {
  const inference::Request& request = picture.request;
  if (request.height != asked.height || request.width != asked.width) {
    warn(fmt::format("{}x{} (height x width) is rounded down to {}x{}: sizes are multiples of {}",
                     asked.height, asked.width, request.height, request.width, size_multiple));
  }
  if (picture.init_ratio == 0) return;
  const double stretch =
      static_cast<double>(request.width) / static_cast<double>(request.height) / picture.init_ratio;
  if (stretch > 1 + kSeenStretch || stretch < 1 / (1 + kSeenStretch)) {
    warn(fmt::format("init image {}: is stretched to {}x{} (height x width), which has other proportions",
                     request.init_image.string(), request.height, request.width));
  }
}

// Of each picture whether it is left out because it is there. Checks and completes the requests of all.
std::vector<bool> find_made(GenerateRun& run, int64_t size_multiple) {
  std::vector<bool> made;
  for (PlannedPicture& picture : run.pictures) {
    const inference::Request asked = picture.request;
    try {
      picture.request = validated(asked, size_multiple);
      settings_of(run, picture).description(picture.format);
    } catch (const ConfigError&) {
      if (!run.resumes) throw;
      rethrow_within(picture.file.string());
    }
    made.push_back(run.resumes && is_made_with(picture.file, settings_of(run, picture), picture.format));
    if (!made.back()) warn_of_changed_sizes(picture, asked, size_multiple);
  }
  return made;
}

inference::PipelineOptions pipeline_options(const GenerateRun& run) {
  const PictureSettings& settings = run.settings;
  inference::PipelineOptions options{
      .model = settings.model,
      .device = settings.device == "cuda" ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU),
      .dtype = settings.precision == "bf16" ? at::kBFloat16 : at::kFloat,
      .loras = settings.loras,
      .lora_lenient = settings.lora_lenient,
      .low_memory = run.low_memory};
  options.max_height = options.max_width = 0;
  for (const PlannedPicture& picture : run.pictures) {
    options.max_height = std::max(options.max_height, picture.request.height);
    options.max_width = std::max(options.max_width, picture.request.width);
  }
  return options;
}

void report_loras(const inference::Pipeline& pipeline) {
  for (const inference::LoadedLora& lora : pipeline.loras()) {
    const auto& parsed = lora.parsed;
    print_line("flowshard generate: LoRA {} (scale {}): {} keys matched, {} unmatched{}",
               lora.option.path.string(), lora.option.scale, parsed.num_matched, parsed.unmatched.size(),
               parsed.without_effect.empty()
                   ? ""
                   : fmt::format(", {} left out because they are zero", parsed.without_effect.size()));
    if (!parsed.unmatched.empty()) {
      warn(fmt::format("{}: {} keys match no linear of this model and are left out, among them {}",
                       lora.option.path.string(), parsed.unmatched.size(), parsed.unmatched.front()));
    }
  }
}

void report_gpu(const inference::Pipeline& pipeline) {
  const inference::PipelineReport& report = pipeline.report();
  const auto gigabytes = [](int64_t bytes) { return static_cast<double>(bytes) / 1e9; };
  print_line("flowshard generate: loaded {:.1f} GB in {:.1f} s ({:.1f} GB/s)", gigabytes(report.loaded_bytes),
             report.load_seconds, gigabytes(report.loaded_bytes) / report.load_seconds);
  const auto phase = [&](const char* name, const inference::PhaseReport& of) {
    print_line("flowshard generate: {}: {:.2f} s, at most {:.1f} GB of GPU memory", name, of.seconds,
               gigabytes(of.peak_bytes));
  };
  phase("encoding text", report.encode);
  phase("denoising", report.denoise);
  phase("decoding", report.decode);
  if (report.num_streamed_blocks > 0) {
    print_line("flowshard generate: {} blocks came from host memory in every step",
               report.num_streamed_blocks);
  }
}

void write_file(const fs::path& path, const std::vector<uint8_t>& bytes) {
  std::error_code failure;
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), failure);
  if (failure)
    throw DataError("cannot make the folder {}: {}", path.parent_path().string(), failure.message());
  storage::AtomicFile file(path);
  file.write(std::as_bytes(std::span(bytes)));
  file.publish();
}

// Whether image i of n is one of the at most kGridImages, evenly spread, that the grid shows.
bool is_in_grid(size_t i, size_t n) {
  return n <= kGridImages || i * kGridImages / n != (i + 1) * kGridImages / n;
}

// From the files, so that it is the same whether they were made now or before.
void write_grid(const GenerateRun& run) {
  std::vector<image::Image> images;
  for (size_t i = 0; i < run.pictures.size(); ++i) {
    if (!is_in_grid(i, run.pictures.size())) continue;
    const storage::MappedFile file(run.pictures[i].file);
    const auto* bytes = reinterpret_cast<const uint8_t*>(file.bytes().data());
    images.push_back(image::decode({bytes, file.bytes().size()}, run.pictures[i].file.string()));
  }
  write_file(run.grid, image::encode_png(image::grid(images, kGridColumns)));
}

void make_picture(const GenerateRun& run, size_t i, inference::Pipeline& pipeline, GenerateReport& report) {
  const PlannedPicture& picture = run.pictures[i];
  const PictureSettings settings = settings_of(run, picture);
  const auto start = Clock::now();
  inference::Observer observer;
  observer.progress = [&](int64_t, int64_t) { report.step(i); };
  observer.preview_every = run.preview_every;
  observer.preview = [&](int64_t, const image::Image& preview) {
    write_file(preview_of(picture.file), image::encode_png(preview));
  };
  const image::Image image = pipeline.generate(picture.request, observer);
  write_file(picture.file, image::encode(image, picture.format,
                                         {.quality = settings.quality,
                                          .description = settings.description(picture.format)}));
  report.made(i, picture, settings, std::chrono::duration<double>(Clock::now() - start).count());
}

void warn_of_cut_words(const inference::Request& request, const inference::Pipeline& pipeline) {
  const std::string cut = pipeline.truncated_words(request).t5;
  if (cut.empty()) return;
  warn(fmt::format("the prompt is longer than {} T5 tokens; cut: \"{}\"", request.max_sequence_length, cut));
}

void make_missing(const GenerateRun& run, const std::vector<bool>& made, GenerateReport& report) {
  inference::Pipeline pipeline(pipeline_options(run));
  if (!pipeline.found().empty()) print_line("flowshard generate: {}", pipeline.found());
  report_loras(pipeline);
  for (size_t i = 0; i < made.size(); ++i) {
    if (!made[i]) warn_of_cut_words(run.pictures[i].request, pipeline);
  }
  for (size_t i = 0; i < made.size(); ++i) {
    if (i % kPreparedAtOnce == 0) {
      std::vector<inference::Request> requests;
      for (size_t j = i; j < std::min(made.size(), i + kPreparedAtOnce); ++j) {
        if (!made[j]) requests.push_back(run.pictures[j].request);
      }
      pipeline.prepare(requests);
    }
    made[i] ? report.skipped(i, run.pictures[i], settings_of(run, run.pictures[i]))
            : make_picture(run, i, pipeline, report);
  }
  if (run.settings.device == "cuda") report_gpu(pipeline);
}

}  // namespace

void make_pictures(GenerateRun run) {
  check_init_images(run.pictures);
  check_output(run);
  std::vector<bool> made;
  {
    const auto source = inference::TransformerSource::open(run.settings.model);
    identify_files(run.settings, source.parts);
    made = find_made(run, source.size_multiple());
  }
  int64_t num_steps = 0;
  for (size_t i = 0; i < made.size(); ++i) num_steps += made[i] ? 0 : steps_to_make(run.pictures[i].request);
  GenerateReport report(made.size(), num_steps, run.json);
  if (num_steps > 0) {
    make_missing(run, made, report);
  } else {
    for (size_t i = 0; i < made.size(); ++i)
      report.skipped(i, run.pictures[i], settings_of(run, run.pictures[i]));
  }
  if (!run.grid.empty()) write_grid(run);
}

}  // namespace flowshard::apps
