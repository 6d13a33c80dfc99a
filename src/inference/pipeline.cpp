#include "inference/pipeline.h"

#include <chrono>
#include <cmath>

#include "core/error.h"
#include "flow_matching/denoise.h"
#include "flow_matching/latents.h"
#include "flow_matching/schedule.h"
#include "inference/block_streaming.h"
#include "inference/device_memory.h"
#include "inference/start_latents.h"
#include "model_folder/model_folder.h"
#include "models/flow_transformer/flow_transformer.h"

namespace flowshard::inference {
namespace {

/// Upper bounds of what tensors take beside weights, in multiples of the largest ones: measured from 512x512
/// to 2048x2048, plus a margin.
WorkBytes work_bytes(const models::FlowTransformerConfig& transformer,
                     const models::AutoencoderConfig& autoencoder, int64_t height, int64_t width,
                     at::ScalarType dtype) {
  const auto element = static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t side = 2 * autoencoder.downsampling();
  const int64_t tokens = kMaxSequenceLength + height / side * (width / side);
  const int64_t widest =
      autoencoder.block_out_channels[std::min<size_t>(1, autoencoder.block_out_channels.size() - 1)];
  constexpr int64_t kMargin = int64_t{256} << 20;
  return {
      .encode = kMargin,
      .denoise = 3 * tokens * (3 * transformer.hidden_size + transformer.mlp_hidden_dim) * element + kMargin,
      .decode = 3 * height * width * widest * element + 2 * kMargin};
}

// [1, 3, H, W] about [-1, 1] -> 8-bit RGB, rounded half to even as diffusers' numpy path does.
image::Image to_image(const at::Tensor& decoded) {
  const at::Tensor unit = (decoded.to(at::kCPU, at::kFloat) / 2 + 0.5).clamp(0, 1);
  if (!at::isfinite(decoded).all().item<bool>())
    throw DataError("the picture is not finite: the model's weights, a LoRA or the precision is at fault");
  const at::Tensor bytes = (unit * 255).round().to(at::kByte)[0].permute({1, 2, 0}).contiguous();
  image::Image image{
      .width = static_cast<int>(bytes.size(1)), .height = static_cast<int>(bytes.size(0)), .pixels = {}};
  image.pixels.assign(bytes.data_ptr<uint8_t>(), bytes.data_ptr<uint8_t>() + bytes.numel());
  return image;
}

/// The time and the peak of memory from its making on.
class Measurement {
 public:
  explicit Measurement(at::Device device) : device_(device) { reset_peak_memory(device); }

  void add_to(PhaseReport& phase) const {
    synchronize(device_);
    phase.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    phase.peak_bytes = std::max(phase.peak_bytes, peak_memory(device_));
  }

 private:
  at::Device device_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

struct Pipeline::Impl {
  explicit Impl(const PipelineOptions& pipeline_options)
      : options(pipeline_options),
        tensor_options(at::TensorOptions(options.dtype).device(options.device)),
        source(TransformerSource::open(options.model)),
        schedule(flow_matching::ScheduleConfig::from_file(source.base.part("scheduler") /
                                                          "scheduler_config.json")),
        transformer(source.config),
        conditioner(source.base, source.text_encoders),
        autoencoder_config(source.autoencoder.config) {
    require_matching_parts();
    source.fill(transformer);  // checks
    loras = read_loras(options.loras, options.lora_lenient, lora_targets());
    plan_fit();
    timed([&] { autoencoder = source.autoencoder.load(tensor_options); });
    report.loaded_bytes += weights.autoencoder;
    if (options.low_memory == LowMemory::kNone) {
      load_text_encoders();
      load_transformer();
    }
  }

  void require_matching_parts() const {
    const auto& config = transformer.config();
    if (config.context_in_dim == conditioner.hidden_size() &&
        config.vec_in_dim == conditioner.pooled_size() &&
        config.in_channels == 4 * autoencoder_config.latent_channels) {
      return;
    }
    throw ConfigError(
        "{}: the parts do not fit: the transformer wants T5 width {}, CLIP width {}, {} latent channels, but "
        "the folder has {}, {}, {}",
        options.model.model.string(), config.context_in_dim, config.vec_in_dim, config.in_channels / 4,
        conditioner.hidden_size(), conditioner.pooled_size(), autoencoder_config.latent_channels);
  }

  std::vector<models::LoraTarget> lora_targets() {
    // CLIP's files know its layers with a prefix and without.
    TensorNames clip_names;
    for (const nn::Parameter* parameter : conditioner.clip_parameters()) {
      clip_names.push_back({.parameter = parameter->name, .key = "text_model." + parameter->name});
    }
    return {{models::LoraComponent::kTransformer, transformer.parameters(),
             flow_transformer_diffusers_names(transformer.config())},
            {models::LoraComponent::kTextEncoder, conditioner.clip_parameters(), clip_names},
            {models::LoraComponent::kTextEncoder2, conditioner.t5_parameters(), {}}};
  }

  void plan_fit() {
    if (options.low_memory == LowMemory::kBlocks && options.device.is_cpu()) {
      throw ConfigError(
          "--low-memory blocks is for GPUs: on a CPU every block lies in host memory anyway; use encoders");
    }
    const auto bytes_of = [&](const std::vector<nn::Parameter*>& parameters) {
      int64_t numel = 0;
      for (const nn::Parameter* parameter : parameters) numel += parameter->numel();
      return numel * static_cast<int64_t>(c10::elementSize(options.dtype));
    };
    weights.text_encoders = bytes_of(conditioner.clip_parameters()) + bytes_of(conditioner.t5_parameters());
    weights.autoencoder = bytes_of(models::Autoencoder(autoencoder_config).parameters());
    weights.outside_blocks = bytes_of(transformer.groups().front()->parameters);
    for (const BlockPart& part : block_parts(false)) weights.blocks.push_back(bytes_of(part.parameters));
    for (const BlockPart& part : block_parts(true)) weights.modulations += bytes_of(part.parameters);
    const WorkBytes work =
        work_bytes(transformer.config(), autoencoder_config, std::min(options.max_height, kMaxSide),
                   std::min(options.max_width, kMaxSide), options.dtype);
    const int64_t free_bytes = free_memory(options.device);
    plan = plan_memory(weights, work, options.low_memory, free_bytes);
    require_fit(plan, weights, work, free_bytes, options.model.model.string(), options.device);
  }

  /// Of every block the parameters of its modulation, or all others.
  std::vector<BlockPart> block_parts(bool modulation) {
    std::vector<BlockPart> parts;
    for (const nn::ParameterGroup* group : transformer.groups()) {
      if (group == transformer.groups().front()) continue;  // the root is no block
      BlockPart& part = parts.emplace_back(group, group->parameters);
      std::erase_if(part.parameters, [&](const nn::Parameter* parameter) {
        return models::is_modulation(*parameter) != modulation;
      });
    }
    return parts;
  }

  void load_text_encoders() {
    timed([&] { conditioner.load(tensor_options); });
    attach(loras, conditioner.clip_parameters());
    attach(loras, conditioner.t5_parameters());
    report.loaded_bytes += weights.text_encoders;
  }

  void load_transformer() {
    const size_t num_blocks = weights.blocks.size();
    timed([&] {
      nn::materialize(transformer.groups().front()->parameters, tensor_options);
      runner = std::make_unique<StreamingRunner>(block_parts(false), plan.num_resident, tensor_options);
      modulation_runner = std::make_unique<StreamingRunner>(
          block_parts(true), plan.num_resident == num_blocks ? num_blocks : 0, tensor_options);
      source.fill(transformer);
    });
    attach(loras, transformer.parameters());
    runner->start();
    modulation_runner->start();
    report.loaded_bytes += weights.transformer();
    report.num_streamed_blocks = num_blocks - plan.num_resident;
  }

  /// With low_memory, encoders and transformer take turns on the device.
  void make_room_for_text_encoders() {
    detach(loras, transformer.parameters());
    for (nn::Parameter* parameter : transformer.parameters()) parameter->value = at::Tensor();
    runner = nullptr;
    modulation_runner = nullptr;
    release_unused_memory(options.device);
    load_text_encoders();
  }

  void make_room_for_transformer() {
    detach(loras, conditioner.clip_parameters());
    detach(loras, conditioner.t5_parameters());
    conditioner.unload();
    release_unused_memory(options.device);
    load_transformer();
  }

  void timed(const std::function<void()>& load) {
    const auto start = std::chrono::steady_clock::now();
    load();
    report.load_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  using Prompt = std::pair<std::string, int64_t>;  // and the number of T5 tokens

  static std::vector<Prompt> prompts_of(const Request& request) {
    std::vector<Prompt> prompts = {{request.prompt, request.max_sequence_length}};
    if (request.true_cfg_scale > 1)
      prompts.emplace_back(request.negative_prompt, request.max_sequence_length);
    return prompts;
  }

  void prepare(const std::vector<Request>& requests) {
    const at::NoGradGuard no_grad;
    std::map<Prompt, Conditioning> wanted;
    for (const Request& request : requests) {
      for (const Prompt& prompt : prompts_of(request)) wanted[prompt];
    }
    const bool all_known =
        std::ranges::all_of(wanted, [&](const auto& entry) { return prepared.contains(entry.first); });
    if (all_known) return;
    if (!conditioner.is_loaded()) make_room_for_text_encoders();
    const Measurement measurement(options.device);
    for (auto& [prompt, conditioning] : wanted) {
      const Conditioning encoded = conditioner.encode(prompt.first, prompt.second);
      conditioning = {.txt = encoded.txt.cpu(), .y = encoded.y.cpu()};
    }
    measurement.add_to(report.encode);
    prepared = std::move(wanted);
  }

  flow_matching::Velocity velocity(const Request& request, const Prompt& prompt, const at::Tensor& img_ids,
                                   const std::vector<float>& sigmas) {
    const at::TensorOptions fp32 = tensor_options.dtype(at::kFloat);
    const Conditioning& text = prepared.at(prompt);
    const at::Tensor guidance =
        transformer.config().guidance_embed ? at::full({1}, request.guidance, fp32) : at::Tensor();
    // The last sigma is the end of the last step.
    const at::Tensor timesteps = at::tensor(at::ArrayRef(sigmas).slice(0, sigmas.size() - 1)).to(fp32);
    const models::Modulations modulations =
        transformer.modulations(timesteps, text.y.to(options.device), guidance, *modulation_runner);
    modulation_runner->release_buffers();
    return [this, sigmas, modulations, txt = text.txt.to(options.device),
            angles = transformer.rotary_angles(img_ids, text.txt.size(1))](const at::Tensor& x, float sigma) {
      const int64_t step = std::ranges::find(sigmas, sigma) - sigmas.begin();
      return transformer.forward(
          {.img = x, .txt = txt, .angles = angles, .modulations = models::at_step(modulations, step)},
          *runner);
    };
  }

  // tokens [1, L, 4C] of h x w latents
  image::Image decode(const at::Tensor& tokens, int64_t height, int64_t width) {
    const at::Tensor latents =
        flow_matching::unpack(tokens, height, width) / autoencoder_config.scaling_factor +
        autoencoder_config.shift_factor;
    return to_image(autoencoder->decode(latents.to(tensor_options)));
  }

  PipelineOptions options;
  at::TensorOptions tensor_options;
  TransformerSource source;
  flow_matching::ScheduleConfig schedule;
  models::FlowTransformer transformer;
  TextConditioner conditioner;
  models::AutoencoderConfig autoencoder_config;
  std::unique_ptr<models::Autoencoder> autoencoder;
  std::vector<LoadedLora> loras;
  WeightBytes weights;
  MemoryPlan plan;
  // Null while the transformer is not loaded.
  std::unique_ptr<StreamingRunner> runner, modulation_runner;
  std::map<Prompt, Conditioning> prepared;  // in host memory
  PipelineReport report;
};

Pipeline::Pipeline(const PipelineOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Pipeline::~Pipeline() = default;

const std::vector<LoadedLora>& Pipeline::loras() const { return impl_->loras; }
const std::string& Pipeline::found() const { return impl_->source.found; }

int64_t Pipeline::size_multiple() const { return impl_->source.size_multiple(); }

TruncatedWords Pipeline::truncated_words(const Request& request) const {
  return impl_->conditioner.truncated_words(request.prompt, request.max_sequence_length);
}

const PipelineReport& Pipeline::report() const { return impl_->report; }

void Pipeline::prepare(const std::vector<Request>& requests) {
  if (impl_->options.low_memory != LowMemory::kNone) impl_->prepare(requests);
}

image::Image Pipeline::generate(const Request& request, const Observer& observer) {
  at::NoGradGuard no_grad;
  Impl& impl = *impl_;
  const int64_t downsampling = impl.autoencoder_config.downsampling();
  const int64_t height = request.height / downsampling, width = request.width / downsampling;
  const at::Device device = impl.options.device;
  const at::Tensor img_ids = flow_matching::image_ids(height, width);
  auto sigmas = flow_matching::get_schedule(impl.schedule, request.num_steps, img_ids.size(0));

  impl.prepare({request});
  if (!impl.runner) impl.make_room_for_transformer();
  const Measurement denoising(device);
  const StartLatents start =
      start_latents(request, *impl.autoencoder, impl.autoencoder_config, sigmas, impl.tensor_options);
  sigmas.erase(sigmas.begin(), sigmas.begin() + start.first_step);
  const auto prompts = Impl::prompts_of(request);
  flow_matching::Velocity velocity = impl.velocity(request, prompts[0], img_ids, sigmas);
  if (request.true_cfg_scale > 1) {
    velocity = flow_matching::with_true_cfg(velocity, impl.velocity(request, prompts[1], img_ids, sigmas),
                                            request.true_cfg_scale);
  }
  const auto after_step = [&](const flow_matching::Step& step) {
    if (observer.progress) observer.progress(step.index, step.num_steps);
    if (observer.preview_every > 0 && step.index % observer.preview_every == 0 &&
        step.index < step.num_steps) {
      observer.preview(step.index, impl.decode(step.estimate(), height, width));
    }
  };
  const at::Tensor tokens =
      flow_matching::denoise(velocity, flow_matching::pack(start.x).to(device), sigmas, after_step);
  denoising.add_to(impl.report.denoise);

  const Measurement decoding(device);
  image::Image image = impl.decode(tokens, height, width);
  decoding.add_to(impl.report.decode);
  return image;
}

}  // namespace flowshard::inference
