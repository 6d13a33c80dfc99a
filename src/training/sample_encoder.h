// From a batch of pictures and captions to what the transformer trains on, with the frozen encoders.
// Shapes: B batch, L image tokens, C channels of a token, T text tokens.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "dataset/dataset.h"
#include "model_folder/model_folder.h"
#include "model_folder/text_conditioning.h"
#include "training/encoded_batch.h"
#include "training/train_config.h"

namespace flowshard::training {

class SampleEncoder {
 public:
  /// Loads text encoders and autoencoder. With data.cache_in_memory what was encoded once is kept, in host
  /// memory.
  SampleEncoder(const ModelFolder& folder, const TrainConfig& config, at::TensorOptions options);

  /// A caption is dropped (encoded as "") by a draw of (run.seed, sample id, epoch) alone.
  EncodedBatch encode(const dataset::Batch& batch);

  /// The same with every caption; of pictures nothing is kept.
  EncodedBatch encode_validation(const dataset::Batch& batch);

  const TextConditioner& conditioner() const { return conditioner_; }
  const models::AutoencoderConfig& autoencoder_config() const { return autoencoder_config_; }

 private:
  EncodedBatch join(const at::Tensor& x0, const std::vector<std::string>& captions);
  at::Tensor pixels_of(const dataset::Batch& batch) const;   // [B, height, width, 3] bytes
  at::Tensor encode_pixels(const at::Tensor& pixels) const;  // [B, L, C]
  at::Tensor encode_images(const dataset::Batch& batch);
  Conditioning encode_caption(const std::string& caption);

  TrainConfig config_;
  at::TensorOptions options_;
  TextConditioner conditioner_;
  models::AutoencoderConfig autoencoder_config_;
  std::unique_ptr<models::Autoencoder> autoencoder_;
  // What is kept, on the host.
  std::unordered_map<int64_t, at::Tensor> latents_;              // by sample id
  std::unordered_map<std::string, Conditioning> conditionings_;  // by caption
};

}  // namespace flowshard::training
