#include "models/lora/lora_keys.h"

#include <algorithm>
#include <array>
#include <utility>

namespace flowshard::models {
namespace {

using Component = std::pair<std::string_view, LoraComponent>;

constexpr std::array kPrefixes = {
    // kohya; lora_te3 is its T5 for FLUX, lora_te2 that of others
    Component{"lora_unet_", LoraComponent::kTransformer},
    Component{"lora_transformer_", LoraComponent::kTransformer},
    Component{"lora_te1_", LoraComponent::kTextEncoder},
    Component{"lora_te2_", LoraComponent::kTextEncoder2},
    Component{"lora_te3_", LoraComponent::kTextEncoder2},
    Component{"lora_te_", LoraComponent::kTextEncoder},
    // BFL and ComfyUI
    Component{"model.diffusion_model.", LoraComponent::kTransformer},
    Component{"diffusion_model.", LoraComponent::kTransformer},
    Component{"text_encoders.clip_l.transformer.", LoraComponent::kTextEncoder},
    Component{"text_encoders.t5xxl.transformer.", LoraComponent::kTextEncoder2},
    // diffusers
    Component{"transformer.", LoraComponent::kTransformer},
    Component{"text_encoder.", LoraComponent::kTextEncoder},
    Component{"text_encoder_2.", LoraComponent::kTextEncoder2},
};

constexpr std::string_view kPeftPrefix = "base_model.model.";

// After a marker comes "weight", peft's adapter name and "weight", or (magnitudes) nothing at all.
constexpr std::array kMarkers = {
    std::pair{std::string_view(".lora_A."), LoraRole::kDown},
    std::pair{std::string_view(".lora_B."), LoraRole::kUp},
    std::pair{std::string_view(".lora_down."), LoraRole::kDown},
    std::pair{std::string_view(".lora_up."), LoraRole::kUp},
    std::pair{std::string_view(".lora.down."), LoraRole::kDown},
    std::pair{std::string_view(".lora.up."), LoraRole::kUp},
    std::pair{std::string_view(".lora_linear_layer.down."), LoraRole::kDown},
    std::pair{std::string_view(".lora_linear_layer.up."), LoraRole::kUp},
    std::pair{std::string_view(".lora_magnitude_vector."), LoraRole::kMagnitude},
};

constexpr std::array kWholeSuffixes = {
    std::pair{std::string_view(".alpha"), LoraRole::kAlpha},
    std::pair{std::string_view(".dora_scale"), LoraRole::kMagnitude},
    std::pair{std::string_view(".lora_magnitude_vector"), LoraRole::kMagnitude},
};

// What other methods put into their keys.
constexpr std::array kForeign = {
    std::pair{std::string_view(".lokr_"), std::string_view("LoKr")},
    std::pair{std::string_view(".hada_"), std::string_view("LoHa")},
    std::pair{std::string_view(".oft_"), std::string_view("OFT")},
    std::pair{std::string_view(".boft_"), std::string_view("BOFT")},
    std::pair{std::string_view(".a1.weight"), std::string_view("GLoRA")},
    std::pair{std::string_view(".a2.weight"), std::string_view("GLoRA")},
    std::pair{std::string_view(".b1.weight"), std::string_view("GLoRA")},
    std::pair{std::string_view(".b2.weight"), std::string_view("GLoRA")},
    std::pair{std::string_view(".on_input"), std::string_view("IA3")},
    std::pair{std::string_view(".ia3_"), std::string_view("IA3")},
    std::pair{std::string_view(".vera_lambda_"), std::string_view("VeRA")},
    std::pair{std::string_view(".lora_mid."), std::string_view("LoCon with a Tucker core")},
    std::pair{std::string_view(".lora_embedding_"), std::string_view("embedding LoRA")},
    std::pair{std::string_view(".processor."), std::string_view("XLabs LoRA")},
    std::pair{std::string_view("_norm.scale"), std::string_view("FLUX Control LoRA")},
    std::pair{std::string_view(".lora_B.bias"), std::string_view("LoRA with biases")},
    std::pair{std::string_view(".lora_up.bias"), std::string_view("LoRA with biases")},
};

/// "weight" or "<adapter name>.weight"; a magnitude may lack the ".weight".
bool is_tail(std::string_view tail, LoraRole role) {
  if (tail == "weight") return true;
  if (tail.ends_with(".weight"))
    tail.remove_suffix(7);
  else if (role != LoraRole::kMagnitude)
    return false;
  return !tail.empty() && tail.find('.') == std::string_view::npos;
}

bool strip(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

LoraKey make_key(std::string_view module, LoraRole role) {
  strip(module, kPeftPrefix);
  LoraComponent component = LoraComponent::kTransformer;
  for (const auto& [prefix, of] : kPrefixes) {
    if (!strip(module, prefix)) continue;
    component = of;
    break;
  }
  strip(module, kPeftPrefix);
  return {component, std::string(module), role};
}

}  // namespace

std::optional<LoraKey> split_lora_key(std::string_view key) {
  for (const auto& [suffix, role] : kWholeSuffixes) {
    if (key.ends_with(suffix)) return make_key(key.substr(0, key.size() - suffix.size()), role);
  }
  for (const auto& [marker, role] : kMarkers) {
    const size_t at = key.rfind(marker);
    if (at == std::string_view::npos || !is_tail(key.substr(at + marker.size()), role)) continue;
    return make_key(key.substr(0, at), role);
  }
  return std::nullopt;
}

std::optional<std::string_view> foreign_method(std::string_view key) {
  for (const auto& [part, method] : kForeign) {
    if (key.find(part) != std::string_view::npos) return method;
  }
  if (is_weight_difference(key)) return "full weight difference";
  return std::nullopt;
}

bool is_weight_difference(std::string_view key) {
  // Only at the end: ".diffusion_model" is a prefix of ours.
  return key.ends_with(".diff") || key.ends_with(".diff_b");
}

std::string flattened(std::string_view module) {
  std::string result(module);
  std::replace(result.begin(), result.end(), '.', '_');
  return result;
}

}  // namespace flowshard::models
