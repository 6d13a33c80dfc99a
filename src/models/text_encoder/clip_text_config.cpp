#include "models/text_encoder/clip_text_config.h"

#include "core/json_config.h"

namespace flowshard::models {

ClipTextConfig ClipTextConfig::from_file(const std::filesystem::path& config_json) {
  const JsonConfig file(config_json);
  file.one_of("model_type", {"clip_text_model"});

  ClipTextConfig config;
  config.vocab_size = file.size("vocab_size");
  config.hidden_size = file.size("hidden_size");
  config.intermediate_size = file.size("intermediate_size");
  config.num_hidden_layers = file.depth("num_hidden_layers");
  config.num_attention_heads = file.size("num_attention_heads");
  config.max_position_embeddings = file.size("max_position_embeddings", 77);
  config.layer_norm_eps = file.positive("layer_norm_eps", 1e-5);
  config.hidden_act = file.one_of("hidden_act", {"quick_gelu", "gelu"}, "quick_gelu");
  config.eos_token_id = file.integer("eos_token_id", 49407);
  if (config.hidden_size % config.num_attention_heads != 0) {
    file.reject("num_attention_heads", "must divide hidden_size");
  }
  return config;
}

}  // namespace flowshard::models
