#include "model_folder/text_conditioning.h"

#include "models/text_encoder/clip_text_model.h"
#include "models/text_encoder/t5_encoder.h"
#include "models/tokenizer/clip_tokenizer.h"
#include "models/tokenizer/t5_tokenizer.h"

namespace flowshard {

struct TextConditioner::Impl {
  Impl(const ModelFolder& folder, at::TensorOptions tensor_options, const TextEncoderWeights& weights)
      : options(tensor_options),
        clip_tokenizer(folder.part("tokenizer")),
        t5_tokenizer(folder.part("tokenizer_2")),
        clip_config(models::ClipTextConfig::from_file(folder.part("text_encoder") / "config.json")),
        t5_config(models::T5Config::from_file(folder.part("text_encoder_2") / "config.json")),
        clip(clip_config),
        t5(t5_config) {
    const auto clip_weights =
        weights.clip ? *weights.clip : checkpoint::Weights::open(folder.part("text_encoder"));
    load_parameters(clip_weights, clip_text_names(clip_config, clip_weights.keys()), clip.parameters(),
                    options, models::kClipTextIgnoredKeys);
    const auto t5_weights =
        weights.t5 ? *weights.t5 : checkpoint::Weights::open(folder.part("text_encoder_2"));
    load_parameters(t5_weights, t5_names(t5_config, t5_weights.keys()), t5.parameters(), options,
                    models::kT5IgnoredKeys);
  }

  at::TensorOptions options;
  models::ClipTokenizer clip_tokenizer;
  models::T5Tokenizer t5_tokenizer;
  models::ClipTextConfig clip_config;
  models::T5Config t5_config;
  models::ClipTextModel clip;
  models::T5Encoder t5;
};

TextConditioner::TextConditioner(const ModelFolder& folder, at::TensorOptions options,
                                 const TextEncoderWeights& weights)
    : impl_(std::make_unique<Impl>(folder, options, weights)) {}

TextConditioner::~TextConditioner() = default;

Conditioning TextConditioner::encode(const std::string& prompt, int64_t max_sequence_length) {
  const auto to_tensor = [&](const models::TokenIds& tokens) {
    return at::tensor(tokens.ids, at::kLong).unsqueeze(0).to(impl_->options.device());
  };
  const auto clip_ids = impl_->clip_tokenizer.encode(prompt, impl_->clip_config.max_position_embeddings);
  const auto t5_ids = impl_->t5_tokenizer.encode(prompt, max_sequence_length);
  return {.txt = impl_->t5.forward(to_tensor(t5_ids)),
          .y = impl_->clip.forward(to_tensor(clip_ids)),
          .clip_truncated = clip_ids.truncated,
          .t5_truncated = t5_ids.truncated};
}

const std::vector<nn::Parameter*>& TextConditioner::clip_parameters() const {
  return impl_->clip.parameters();
}
const std::vector<nn::Parameter*>& TextConditioner::t5_parameters() const { return impl_->t5.parameters(); }

int64_t TextConditioner::pooled_size() const { return impl_->clip_config.hidden_size; }
int64_t TextConditioner::hidden_size() const { return impl_->t5_config.d_model; }

}  // namespace flowshard
