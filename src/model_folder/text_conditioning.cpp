#include "model_folder/text_conditioning.h"

#include "models/text_encoder/clip_text_model.h"
#include "models/text_encoder/t5_encoder.h"
#include "models/tokenizer/clip_tokenizer.h"
#include "models/tokenizer/t5_tokenizer.h"

namespace flowshard {

struct TextConditioner::Impl {
  Impl(const ModelFolder& folder, const TextEncoderWeights& weights)
      : clip_tokenizer(folder.part("tokenizer")),
        t5_tokenizer(folder.part("tokenizer_2")),
        clip_config(models::ClipTextConfig::from_file(folder.part("text_encoder") / "config.json")),
        t5_config(models::T5Config::from_file(folder.part("text_encoder_2") / "config.json")),
        clip_weights(weights.clip ? *weights.clip : checkpoint::Weights::open(folder.part("text_encoder"))),
        t5_weights(weights.t5 ? *weights.t5 : checkpoint::Weights::open(folder.part("text_encoder_2"))),
        clip(clip_config),
        t5(t5_config) {
    fill();
  }

  /// Fills the parameters that are materialized, and checks all.
  void fill() {
    checkpoint::fill_parameters(clip_weights, clip_text_names(clip_config, clip_weights.keys()),
                                values_of(clip.parameters()), models::kClipTextIgnoredKeys);
    checkpoint::fill_parameters(t5_weights, t5_names(t5_config, t5_weights.keys()),
                                values_of(t5.parameters()), models::kT5IgnoredKeys);
  }

  models::TokenIds clip_ids(const std::string& prompt) const {
    return clip_tokenizer.encode(prompt, clip_config.max_position_embeddings);
  }

  models::ClipTokenizer clip_tokenizer;
  models::T5Tokenizer t5_tokenizer;
  models::ClipTextConfig clip_config;
  models::T5Config t5_config;
  checkpoint::Weights clip_weights, t5_weights;
  models::ClipTextModel clip;
  models::T5Encoder t5;
};

TextConditioner::TextConditioner(const ModelFolder& folder, const TextEncoderWeights& weights)
    : impl_(std::make_unique<Impl>(folder, weights)) {}

TextConditioner::~TextConditioner() = default;

void TextConditioner::load(at::TensorOptions options) {
  nn::materialize(clip_parameters(), options);
  nn::materialize(t5_parameters(), options);
  impl_->fill();
}

void TextConditioner::unload() {
  for (const auto* parameters : {&clip_parameters(), &t5_parameters()}) {
    for (nn::Parameter* parameter : *parameters) parameter->value = at::Tensor();
  }
}

bool TextConditioner::is_loaded() const { return t5_parameters().front()->value.defined(); }

Conditioning TextConditioner::encode(const std::string& prompt, int64_t max_sequence_length) {
  const at::Device device = t5_parameters().front()->value.device();
  const auto to_tensor = [&](const models::TokenIds& tokens) {
    return at::tensor(tokens.ids, at::kLong).unsqueeze(0).to(device);
  };
  return {.txt = impl_->t5.forward(to_tensor(impl_->t5_tokenizer.encode(prompt, max_sequence_length))),
          .y = impl_->clip.forward(to_tensor(impl_->clip_ids(prompt)))};
}

TruncatedWords TextConditioner::truncated_words(const std::string& prompt,
                                                int64_t max_sequence_length) const {
  return {.clip = impl_->clip_ids(prompt).truncated,
          .t5 = impl_->t5_tokenizer.encode(prompt, max_sequence_length).truncated};
}

const std::vector<nn::Parameter*>& TextConditioner::clip_parameters() const {
  return impl_->clip.parameters();
}
const std::vector<nn::Parameter*>& TextConditioner::t5_parameters() const { return impl_->t5.parameters(); }

int64_t TextConditioner::pooled_size() const { return impl_->clip_config.hidden_size; }
int64_t TextConditioner::hidden_size() const { return impl_->t5_config.d_model; }

}  // namespace flowshard
