#include "model_folder/describe_weights.h"

#include <array>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "model_folder/component_files.h"
#include "model_folder/model_folder.h"
#include "models/text_encoder/clip_text_model.h"
#include "models/text_encoder/t5_encoder.h"
#include "models/tokenizer/clip_tokenizer.h"
#include "models/tokenizer/t5_tokenizer.h"

namespace flowshard {
namespace {

namespace fs = std::filesystem;
using checkpoint::Weights;
using Json = nlohmann::ordered_json;

struct KeyPattern {
  const char* part;  // of a key
  const char* kind;
};
// The first that any key has.
constexpr std::array kAdapterPatterns = {
    KeyPattern{".hada_w1_a", "LoHa adapter"},
    KeyPattern{".lokr_w1", "LoKr adapter"},
    KeyPattern{".qkv_lora", "LoRA (xlabs)"},
    KeyPattern{"lora_unet_", "LoRA (kohya)"},
    KeyPattern{"lora_te", "LoRA (kohya)"},
    KeyPattern{"transformer.", "LoRA (diffusers)"},
    KeyPattern{"diffusion_model.", "LoRA (official keys)"},
    KeyPattern{"", "LoRA"},
};
constexpr std::array kAdapterParts = {".lora_A.",  ".lora_B.",   ".lora_down.", ".lora_up.", ".lora.down.",
                                      ".lora.up.", ".hada_w1_a", ".lokr_w1",    ".qkv_lora"};

bool any_key_has(const std::vector<std::string>& keys, std::string_view part) {
  return std::ranges::any_of(keys,
                             [&](const std::string& key) { return key.find(part) != std::string::npos; });
}

std::string adapter_kind(const std::vector<std::string>& keys) {
  if (std::ranges::none_of(kAdapterParts, [&](const char* part) { return any_key_has(keys, part); }))
    return "";
  const auto found = std::ranges::find_if(
      kAdapterPatterns, [&](const KeyPattern& pattern) { return any_key_has(keys, pattern.part); });
  return found->kind;
}

// Tensors, parameters (those that only say how others are stored left out) and bytes.
Json sizes_of(const Weights& weights) {
  int64_t num_tensors = 0, parameters = 0, bytes = 0;
  std::map<std::string, int64_t> dtypes;
  for (const std::string& key : weights.keys()) {
    const checkpoint::TensorInfo& info = weights.info(key);
    ++num_tensors;
    if (!checkpoint::is_quantization_key(key)) parameters += c10::multiply_integers(info.shape);
    bytes += info.size_bytes;
    dtypes[checkpoint::safetensors_name(info.dtype)] += info.size_bytes;
  }
  return {{"tensors", num_tensors}, {"parameters", parameters}, {"bytes", bytes}, {"bytes_by_dtype", dtypes}};
}

Json parsed(const std::string& text) { return Json::parse(text); }

void describe_transformer(const Weights& weights, const fs::path& config_json, Json& report) {
  report["components"]["transformer"] = sizes_of(weights);
  const TransformerFiles files = TransformerFiles::of(weights, config_json);
  report["configuration"]["transformer"] = parsed(files.config.to_diffusers());
  models::FlowTransformer model(files.config);
  files.fill(model);  // nothing is materialized: only checks
}

void describe_autoencoder(const Weights& weights, const fs::path& config_json, Json& report) {
  report["components"]["vae"] = sizes_of(weights);
  const AutoencoderFiles files = AutoencoderFiles::of(weights, config_json);
  report["configuration"]["vae"] = parsed(files.config.to_diffusers());
  checkpoint::fill_parameters(files.weights, files.names,
                              values_of(models::Autoencoder(files.config).parameters()));
}

template <typename Config, typename Model, typename Names>
void check_text_encoder(const fs::path& folder, const Names& names, const std::vector<std::string>& ignored,
                        Json& report) {
  const Weights weights = Weights::open(folder);
  report["components"][folder.filename().string()] = sizes_of(weights);
  const auto config = Config::from_file(folder / "config.json");
  const Model model(config);
  checkpoint::fill_parameters(weights, names(config, weights.keys()), values_of(model.parameters()), ignored);
}

}  // namespace

std::string kind_of_weights(const Weights& weights) {
  const TensorListing listing = weights.listing();
  if (models::is_flow_transformer_bfl(listing)) return "FLUX transformer (official format)";
  if (models::is_flow_transformer_diffusers(listing)) return "FLUX transformer (diffusers)";
  if (models::is_autoencoder_bfl(listing)) return "autoencoder (official format)";
  if (models::is_autoencoder_diffusers(listing)) return "autoencoder (diffusers)";
  const std::vector<std::string> keys = weights.keys();
  if (const std::string adapter = adapter_kind(keys); !adapter.empty()) return adapter;
  if (weights.has_prefix("model.diffusion_model.double_blocks.")) return "FLUX model in one file (ComfyUI)";
  if (any_key_has(keys, "encoder.block.0.layer.0.SelfAttention")) return "text encoder (T5)";
  if (any_key_has(keys, "encoder.layers.0.self_attn.q_proj")) return "text encoder (CLIP)";
  return "tensors of an unknown model";
}

void describe_weights(const fs::path& path, Json& report) {
  const Weights weights = Weights::open(path);
  report["kind"] = kind_of_weights(weights);
  const fs::path config_json = (fs::is_directory(path) ? path : path.parent_path()) / "config.json";
  if (!adapter_kind(weights.keys()).empty()) {
    report["components"]["adapter"] = sizes_of(weights);
    return;
  }
  const SingleFile parts = SingleFile::split(weights);
  if (!parts.transformer && !parts.autoencoder) report["components"]["tensors"] = sizes_of(weights);
  if (parts.clip) report["components"]["text_encoder"] = sizes_of(*parts.clip);
  if (parts.t5) report["components"]["text_encoder_2"] = sizes_of(*parts.t5);
  if (parts.transformer) describe_transformer(*parts.transformer, config_json, report);
  if (parts.autoencoder) describe_autoencoder(*parts.autoencoder, config_json, report);
}

void describe_model_folder(const fs::path& path, Json& report) {
  report["kind"] = "FLUX model folder (diffusers)";
  const ModelFolder folder = ModelFolder::open(path);
  check_text_encoder<models::ClipTextConfig, models::ClipTextModel>(
      folder.part("text_encoder"), models::clip_text_names, models::kClipTextIgnoredKeys, report);
  check_text_encoder<models::T5Config, models::T5Encoder>(folder.part("text_encoder_2"), models::t5_names,
                                                          models::kT5IgnoredKeys, report);
  const models::ClipTokenizer clip_tokenizer(folder.part("tokenizer"));
  const models::T5Tokenizer t5_tokenizer(folder.part("tokenizer_2"));
  describe_transformer(Weights::open(folder.part("transformer")), folder.part("transformer") / "config.json",
                       report);
  describe_autoencoder(Weights::open(folder.part("vae")), folder.part("vae") / "config.json", report);
}

}  // namespace flowshard
