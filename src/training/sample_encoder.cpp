#include "training/sample_encoder.h"

#include "core/mix_bits.h"
#include "flow_matching/latents.h"
#include "flow_matching/loss.h"
#include "model_folder/component_files.h"

namespace flowshard::training {
namespace {

at::Tensor host_copy(const at::Tensor& tensor) {
  return tensor.to(tensor.options().device(at::kCPU), /*non_blocking=*/false, /*copy=*/true);
}

}  // namespace

SampleEncoder::SampleEncoder(const ModelFolder& folder, const TrainConfig& config, at::TensorOptions options)
    : config_(config), options_(options), conditioner_(folder) {
  conditioner_.load(options);
  const AutoencoderFiles files = AutoencoderFiles::open(folder.part("vae"));
  autoencoder_config_ = files.config;
  autoencoder_ = files.load(options);
}

EncodedBatch SampleEncoder::encode(const dataset::Batch& batch) {
  at::NoGradGuard no_grad;
  std::vector<std::string> captions = batch.captions;
  for (size_t i = 0; i < captions.size(); ++i) {
    const flow_matching::SampleKey key = {static_cast<uint64_t>(batch.sample_ids[i]),
                                          static_cast<uint64_t>(batch.epochs[i])};
    const auto seed = flow_matching::sample_seed(static_cast<uint64_t>(config_.run.seed), key,
                                                 flow_matching::Purpose::kCaptionDropout);
    if (unit_of(seed) < config_.text.caption_dropout) captions[i].clear();
  }
  return join(encode_images(batch), captions);
}

EncodedBatch SampleEncoder::encode_validation(const dataset::Batch& batch) {
  at::NoGradGuard no_grad;
  return join(encode_pixels(pixels_of(batch)), batch.captions);
}

EncodedBatch SampleEncoder::join(const at::Tensor& x0, const std::vector<std::string>& captions) {
  std::vector<at::Tensor> txt, y;
  for (const std::string& caption : captions) {
    const Conditioning conditioning = encode_caption(caption);
    txt.push_back(conditioning.txt);
    y.push_back(conditioning.y);
  }
  return {.x0 = x0, .txt = at::cat(txt), .y = at::cat(y)};
}

at::Tensor SampleEncoder::pixels_of(const dataset::Batch& batch) const {
  return at::from_blob(
      const_cast<uint8_t*>(batch.pixels.data()),
      {static_cast<int64_t>(batch.sample_ids.size()), config_.data.height, config_.data.width, 3}, at::kByte);
}

at::Tensor SampleEncoder::encode_pixels(const at::Tensor& pixels) const {
  const at::Tensor images =
      pixels.to(options_.device()).permute({0, 3, 1, 2}).to(options_.dtype()) / 127.5 - 1;
  const at::Tensor mean = autoencoder_->encode(images).mean.to(at::kFloat);
  return flow_matching::pack((mean - autoencoder_config_.shift_factor) * autoencoder_config_.scaling_factor);
}

at::Tensor SampleEncoder::encode_images(const dataset::Batch& batch) {
  std::vector<at::Tensor> result(batch.sample_ids.size());
  std::vector<int64_t> missing;
  for (size_t i = 0; i < result.size(); ++i) {
    const auto found = latents_.find(batch.sample_ids[i]);
    if (found != latents_.end()) {
      result[i] = found->second.to(options_.device());
    } else {
      missing.push_back(static_cast<int64_t>(i));
    }
  }
  if (missing.empty()) return at::stack(result);

  const at::Tensor tokens = encode_pixels(pixels_of(batch).index_select(0, at::tensor(missing, at::kLong)));
  for (size_t j = 0; j < missing.size(); ++j) {
    const auto i = static_cast<size_t>(missing[j]);
    result[i] = tokens[static_cast<int64_t>(j)];
    if (config_.data.cache_in_memory) latents_[batch.sample_ids[i]] = host_copy(result[i]);
  }
  return at::stack(result);
}

Conditioning SampleEncoder::encode_caption(const std::string& caption) {
  const auto found = conditionings_.find(caption);
  if (found != conditionings_.end()) {
    return {.txt = found->second.txt.to(options_.device()), .y = found->second.y.to(options_.device())};
  }
  Conditioning conditioning = conditioner_.encode(caption, config_.text.max_sequence_length);
  if (config_.data.cache_in_memory) {
    conditionings_[caption] = {.txt = host_copy(conditioning.txt), .y = host_copy(conditioning.y)};
  }
  return conditioning;
}

}  // namespace flowshard::training
