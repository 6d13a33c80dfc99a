// Weights stored as fp8 with a scale beside each, as ComfyUI writes them: what the keys beside the weights
// mean.
#include <array>
#include <span>

#include "checkpoint/checkpoint_json.h"
#include "checkpoint/weights.h"
#include "core/error.h"

namespace flowshard::checkpoint {
namespace {

constexpr std::string_view kWeight = ".weight";
constexpr std::array<std::string_view, 2> kScales = {".scale_weight", ".weight_scale"};
// Scales of activations, which are for arithmetic in fp8.
constexpr std::array<std::string_view, 2> kInputScales = {".scale_input", ".input_scale"};
constexpr std::string_view kFileMarker = "scaled_fp8";     // an empty tensor of the fp8 dtype
constexpr std::string_view kLayerMarker = ".comfy_quant";  // JSON as bytes

// "x.scale_weight" -> "x"; "" if the key ends in none of the suffixes.
std::string layer_of(const std::string& key, std::span<const std::string_view> suffixes) {
  for (const std::string_view suffix : suffixes) {
    if (key.ends_with(suffix)) return key.substr(0, key.size() - suffix.size());
  }
  return "";
}

void check_layer_marker(const Weights& weights, const std::string& key) {
  const std::string where = fmt::format("{}: {}", weights.source(), in_quotes(key));
  if (weights.info(key).dtype != at::kByte) throw CheckpointError("{} holds no bytes", where);
  const at::Tensor bytes = weights.tensor(key).contiguous();
  const std::string_view text(static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes());
  const auto json = parse_json(text, where);
  const auto format = json.is_object() ? json.value("format", nlohmann::json()) : nlohmann::json();
  if (format != "float8_e4m3fn" && format != "float8_e5m2") {
    throw CheckpointError("{} says the format {}: only float8_e4m3fn and float8_e5m2 can be read", where,
                          format.dump());
  }
}

}  // namespace

std::string scale_key(const Weights& weights, const std::string& key) {
  const std::string layer = layer_of(key, std::array{kWeight});
  if (layer.empty()) return "";
  for (const std::string_view suffix : kScales) {
    if (std::string scale = layer + std::string(suffix); weights.contains(scale)) return scale;
  }
  return "";
}

bool is_quantization_key(const std::string& key) {
  return key == kFileMarker || !layer_of(key, kScales).empty() || !layer_of(key, kInputScales).empty() ||
         !layer_of(key, std::array{kLayerMarker}).empty();
}

void check_scales(const Weights& weights) {
  for (const std::string& key : weights.keys()) {
    if (key == kFileMarker || !is_quantization_key(key)) continue;
    if (key.ends_with(kLayerMarker)) {
      check_layer_marker(weights, key);
      continue;
    }
    const bool of_weight = layer_of(key, kInputScales).empty();
    const std::string weight = layer_of(key, of_weight ? kScales : kInputScales) + std::string(kWeight);
    if (!weights.contains(weight)) {
      throw CheckpointError("{}: {} is a scale without its weight, {}: the file is damaged or incomplete",
                            weights.source(), in_quotes(key), in_quotes(weight));
    }
    if (of_weight && scale_key(weights, weight) != key) {
      throw CheckpointError("{}: {} has two scales, {} and {}", weights.source(), in_quotes(weight),
                            in_quotes(key), in_quotes(scale_key(weights, weight)));
    }
  }
}

at::Tensor dequantized(const at::Tensor& stored, const at::Tensor& scale) {
  std::vector<int64_t> shape(static_cast<size_t>(std::max<int64_t>(stored.dim(), 1)), 1);
  shape[0] = scale.numel();
  const at::Tensor factors = scale.to(at::kFloat).reshape(stored.dim() > 0 ? shape : std::vector<int64_t>{});
  return at::mul(stored.to(at::kFloat), factors);
}

}  // namespace flowshard::checkpoint
