#include "models/text_encoder/t5_config.h"

#include "core/json_config.h"

namespace flowshard::models {

T5Config T5Config::from_file(const std::filesystem::path& config_json) {
  const JsonConfig file(config_json);
  file.one_of("model_type", {"t5"});
  file.one_of("feed_forward_proj", {"gated-gelu"});
  file.one_of("dense_act_fn", {"gelu_new"}, "gelu_new");
  if (file.boolean("is_decoder", false)) file.reject("is_decoder", "only encoders are supported");

  T5Config config;
  config.vocab_size = file.size("vocab_size");
  config.d_model = file.size("d_model");
  config.d_kv = file.size("d_kv");
  config.d_ff = file.size("d_ff");
  config.num_layers = file.depth("num_layers");
  config.num_heads = file.size("num_heads");
  config.relative_attention_num_buckets = file.size("relative_attention_num_buckets", 32);
  config.relative_attention_max_distance = file.size("relative_attention_max_distance", 128);
  config.layer_norm_epsilon = file.positive("layer_norm_epsilon", 1e-6);
  if (config.relative_attention_num_buckets < 4)
    file.reject("relative_attention_num_buckets", "must be at least 4");
  if (config.relative_attention_max_distance <= config.relative_attention_num_buckets / 4) {
    file.reject("relative_attention_max_distance",
                "must be above a quarter of relative_attention_num_buckets");
  }
  return config;
}

}  // namespace flowshard::models
