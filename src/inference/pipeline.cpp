#include "inference/pipeline.h"

#include <cmath>

#include "core/error.h"
#include "flow_matching/denoise.h"
#include "flow_matching/latents.h"
#include "flow_matching/schedule.h"
#include "model_folder/model_folder.h"
#include "model_folder/text_conditioning.h"
#include "models/flow_transformer/flow_transformer.h"
#include "nn/block_runner.h"

namespace flowshard::inference {
namespace {

constexpr int64_t kMaxSide = 8192;
constexpr int64_t kMaxSteps = 1000;
constexpr int64_t kMaxSequenceLength = 512;  // what FLUX.1 was trained with

// [1, 3, H, W] about [-1, 1] -> 8-bit RGB, rounded half to even as diffusers' numpy path does.
image::Image to_image(const at::Tensor& decoded) {
  const at::Tensor unit = (decoded.to(at::kCPU, at::kFloat) / 2 + 0.5).clamp(0, 1);
  check(at::isfinite(decoded).all().item<bool>(),
        "the decoded image is not finite: the model or its precision is at fault");
  const at::Tensor bytes = (unit * 255).round().to(at::kByte)[0].permute({1, 2, 0}).contiguous();
  image::Image image{
      .width = static_cast<int>(bytes.size(1)), .height = static_cast<int>(bytes.size(0)), .pixels = {}};
  image.pixels.assign(bytes.data_ptr<uint8_t>(), bytes.data_ptr<uint8_t>() + bytes.numel());
  return image;
}

}  // namespace

struct Pipeline::Impl {
  explicit Impl(const PipelineOptions& pipeline_options)
      : options(pipeline_options),
        tensor_options(at::TensorOptions(options.dtype).device(options.device)),
        source(TransformerSource::open(options.model)),
        schedule(flow_matching::ScheduleConfig::from_file(source.base.part("scheduler") /
                                                          "scheduler_config.json")),
        transformer(source.config),
        conditioner(source.base, tensor_options, source.text_encoders),
        autoencoder_config(source.autoencoder.config),
        autoencoder(source.autoencoder.load(tensor_options)) {
    const auto& config = transformer.config();
    if (config.context_in_dim != conditioner.hidden_size() ||
        config.vec_in_dim != conditioner.pooled_size() ||
        config.in_channels != 4 * autoencoder_config.latent_channels) {
      throw ConfigError(
          "{}: the parts do not fit: the transformer wants T5 width {}, CLIP width {}, {} latent channels, "
          "but "
          "the folder has {}, {}, {}",
          options.model.model.string(), config.context_in_dim, config.vec_in_dim, config.in_channels / 4,
          conditioner.hidden_size(), conditioner.pooled_size(), autoencoder_config.latent_channels);
    }
    loras = read_loras(options.loras, options.lora_lenient, lora_targets());
    source.fill(transformer, tensor_options);
    attach(loras);
    // All is copied: nothing keeps the weights files mapped.
    source.fill = nullptr;
    source.autoencoder.weights = {};
    source.text_encoders = {};
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

  flow_matching::Velocity velocity(const Request& request, const std::string& prompt,
                                   const at::Tensor& img_ids) {
    const Conditioning text = conditioner.encode(prompt, request.max_sequence_length);
    return [this, text, img_ids, guidance = request.guidance](const at::Tensor& x, float sigma) {
      const auto fp32 = at::TensorOptions(at::kFloat).device(options.device);
      return transformer.forward(
          {.img = x,
           .img_ids = img_ids,
           .txt = text.txt,
           .timesteps = at::full({1}, sigma, fp32),
           .y = text.y,
           .guidance = transformer.config().guidance_embed ? at::full({1}, guidance, fp32) : at::Tensor()},
          runner);
    };
  }

  PipelineOptions options;
  at::TensorOptions tensor_options;
  TransformerSource source;
  flow_matching::ScheduleConfig schedule;
  models::FlowTransformer transformer;
  TextConditioner conditioner;
  models::AutoencoderConfig autoencoder_config;
  std::unique_ptr<models::Autoencoder> autoencoder;
  nn::DirectRunner runner;
  std::vector<LoadedLora> loras;
};

Pipeline::Pipeline(const PipelineOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Pipeline::~Pipeline() = default;

const std::vector<LoadedLora>& Pipeline::loras() const { return impl_->loras; }
const std::string& Pipeline::found() const { return impl_->source.found; }

int64_t Pipeline::size_multiple() const { return 2 * impl_->autoencoder_config.downsampling(); }

Request Pipeline::validated(const Request& request) const {
  const auto in_range = [](const char* what, auto value, auto low, auto high) {
    if (!(value >= low && value <= high))
      throw ConfigError("{} is {}: it must be from {} to {}", what, value, low, high);
  };
  in_range("height", request.height, size_multiple(), kMaxSide);
  in_range("width", request.width, size_multiple(), kMaxSide);
  in_range("number of steps", request.num_steps, int64_t{1}, kMaxSteps);
  in_range("max sequence length", request.max_sequence_length, int64_t{1}, kMaxSequenceLength);
  in_range("guidance", request.guidance, 0.0, 1000.0);
  in_range("true CFG scale", request.true_cfg_scale, 0.0, 1000.0);
  Request result = request;
  result.height -= request.height % size_multiple();
  result.width -= request.width % size_multiple();
  return result;
}

std::string Pipeline::truncated_words(const Request& request) {
  const Conditioning text = impl_->conditioner.encode(request.prompt, request.max_sequence_length);
  return text.t5_truncated;
}

image::Image Pipeline::generate(const Request& request, const Progress& progress) {
  at::NoGradGuard no_grad;
  Impl& impl = *impl_;
  const int64_t downsampling = impl.autoencoder_config.downsampling();
  const int64_t height = request.height / downsampling, width = request.width / downsampling;
  const at::Device device = impl.options.device;
  const at::Tensor img_ids = flow_matching::image_ids(height, width).to(device);

  flow_matching::Velocity velocity = impl.velocity(request, request.prompt, img_ids);
  if (request.true_cfg_scale > 1) {
    velocity = flow_matching::with_true_cfg(
        velocity, impl.velocity(request, request.negative_prompt, img_ids), request.true_cfg_scale);
  }
  const at::Tensor noise =
      flow_matching::start_noise(request.seed, impl.autoencoder_config.latent_channels, height, width);
  const auto sigmas = flow_matching::get_schedule(impl.schedule, request.num_steps, img_ids.size(0));
  const at::Tensor tokens = flow_matching::denoise(velocity, flow_matching::pack(noise).to(device), sigmas,
                                                   [&](int64_t step, int64_t num_steps, const at::Tensor&) {
                                                     if (progress) progress(step, num_steps);
                                                   });

  const at::Tensor latents =
      flow_matching::unpack(tokens, height, width) / impl.autoencoder_config.scaling_factor +
      impl.autoencoder_config.shift_factor;
  return to_image(impl.autoencoder->decode(latents.to(impl.tensor_options)));
}

}  // namespace flowshard::inference
