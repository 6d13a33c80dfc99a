#include "models/text_encoder/t5_encoder.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "core/error.h"
#include "models/text_encoder/token_embedding.h"
#include "nn/linear.h"

namespace flowshard::models {
namespace {

const std::string kEmbedding = "shared.weight";

/// x * rsqrt(mean(x^2) + eps) * weight over the last dimension: in fp32, rounded to the dtype of the weight
/// before the product with it, as transformers' T5LayerNorm does.
class RmsNorm {
 public:
  RmsNorm(nn::ParameterGroup& group, const std::string& name, int64_t width, double eps)
      : weight_(name + ".weight", {width}), eps_(eps) {
    group.parameters.push_back(&weight_);
  }

  at::Tensor forward(const at::Tensor& x) const {
    const at::Tensor wide = x.to(at::kFloat);
    at::Tensor inverse = wide.square().mean(-1, /*keepdim=*/true).add_(eps_).rsqrt_();
    return wide.mul(inverse).to(x.scalar_type()).mul_(weight_.value);
  }

 private:
  nn::Parameter weight_;
  double eps_;
};

class SelfAttention {
 public:
  SelfAttention(nn::ParameterGroup& group, const std::string& name, const T5Config& config)
      : num_heads_(config.num_heads),
        q_(group, name + ".q", config.d_model, config.num_heads * config.d_kv, false),
        k_(group, name + ".k", config.d_model, config.num_heads * config.d_kv, false),
        v_(group, name + ".v", config.d_model, config.num_heads * config.d_kv, false),
        o_(group, name + ".o", config.num_heads * config.d_kv, config.d_model, false) {}

  /// x [B, L, D], bias [1, heads, L, L]; the scores are not divided by sqrt(d_kv).
  at::Tensor forward(const at::Tensor& x, const at::Tensor& bias) {
    const auto heads = [&](nn::Linear& projection) {  // [B, heads, L, d_kv]
      return projection.forward(x).unflatten(-1, {num_heads_, -1}).transpose(1, 2);
    };
    const at::Tensor out =
        at::scaled_dot_product_attention(heads(q_), heads(k_), heads(v_), bias, /*dropout_p=*/0.0,
                                         /*is_causal=*/false, /*scale=*/1.0);
    return o_.forward(out.transpose(1, 2).flatten(2));
  }

 private:
  int64_t num_heads_;
  nn::Linear q_, k_, v_, o_;
};

class GatedFeedForward {
 public:
  GatedFeedForward(nn::ParameterGroup& group, const std::string& name, const T5Config& config)
      : wi_0_(group, name + ".wi_0", config.d_model, config.d_ff, false),
        wi_1_(group, name + ".wi_1", config.d_model, config.d_ff, false),
        wo_(group, name + ".wo", config.d_ff, config.d_model, false) {}

  at::Tensor forward(const at::Tensor& x) {
    at::Tensor gate = wi_0_.forward(x);
    return wo_.forward(at::gelu_(gate, "tanh").mul_(wi_1_.forward(x)));
  }

 private:
  nn::Linear wi_0_, wi_1_, wo_;
};

struct Layer {
  Layer(nn::ParameterGroup& group, const std::string& name, const T5Config& config)
      : attention(group, name + ".layer.0.SelfAttention", config),
        attention_norm(group, name + ".layer.0.layer_norm", config.d_model, config.layer_norm_epsilon),
        feed_forward(group, name + ".layer.1.DenseReluDense", config),
        feed_forward_norm(group, name + ".layer.1.layer_norm", config.d_model, config.layer_norm_epsilon) {}

  SelfAttention attention;
  RmsNorm attention_norm;
  GatedFeedForward feed_forward;
  RmsNorm feed_forward_norm;
};

}  // namespace

TensorNames t5_names(const T5Config& config, const std::vector<std::string>& stored_keys) {
  const auto stored = [&](const std::string& key) {
    return std::find(stored_keys.begin(), stored_keys.end(), key) != stored_keys.end();
  };
  const std::string& tied = kT5IgnoredKeys.front();
  const T5Encoder model(config);
  TensorNames names;
  for (const nn::Parameter* parameter : model.parameters()) {
    const bool use_tied = parameter->name == kEmbedding && !stored(kEmbedding) && stored(tied);
    names.push_back({.parameter = parameter->name, .key = use_tied ? tied : parameter->name});
  }
  return names;
}

at::Tensor t5_relative_buckets(int64_t length, int64_t num_buckets, int64_t max_distance) {
  const int64_t half = num_buckets / 2;  // one half for keys before the query, one for keys after
  const int64_t exact = half / 2;        // so many distances have a bucket of their own
  const at::Tensor offset = at::arange(1 - length, length, at::kLong);
  const at::Tensor distance = offset.abs();
  // In fp32, step by step as transformers does: at the edge of a bucket the rounding decides.
  const at::Tensor octaves = at::log(distance.to(at::kFloat) / exact) /
                             std::log(static_cast<double>(max_distance) / static_cast<double>(exact));
  // The logarithm of distance 0 is not used, but it must be finite to become an integer.
  const at::Tensor shared =
      (octaves.clamp_min(0) * (half - exact)).to(at::kLong).add_(exact).clamp_max_(half - 1);
  return at::where(distance < exact, distance, shared) + (offset > 0).to(at::kLong) * half;
}

struct T5Encoder::Impl {
  explicit Impl(const T5Config& config)
      : config(config),
        embedding(kEmbedding, {config.vocab_size, config.d_model}),
        relative_bias("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
                      {config.relative_attention_num_buckets, config.num_heads}),
        final_norm(root, "encoder.final_layer_norm", config.d_model, config.layer_norm_epsilon) {
    root.parameters.push_back(&embedding);
    root.parameters.push_back(&relative_bias);
    for (int64_t i = 0; i < config.num_layers; ++i) {
      layers.emplace_back(root, "encoder.block." + std::to_string(i), config);
    }
  }

  /// [1, heads, L, L], kept until the length or the weight changes: building it costs as much as a layer.
  const at::Tensor& position_bias(int64_t length) {
    const at::Tensor& table = relative_bias.value;
    const int64_t version = table.is_inference() ? 0 : table._version();
    if (!bias.defined() || bias.size(-1) != length || !bias_table.is_same(table) ||
        bias_table_version != version) {
      const at::Tensor buckets = t5_relative_buckets(length, config.relative_attention_num_buckets,
                                                     config.relative_attention_max_distance);
      const at::Tensor by_offset = at::embedding(table, buckets.to(table.device()));  // [2 L - 1, heads]
      const at::Tensor positions = at::arange(length, table.options().dtype(at::kLong));
      const at::Tensor offset =
          positions.unsqueeze(0) - positions.unsqueeze(1) + (length - 1);  // [query, key]
      bias = by_offset.t().index({at::indexing::Slice(), offset}).unsqueeze(0).contiguous();
      bias_table = table;
      bias_table_version = version;
    }
    return bias;
  }

  const T5Config config;
  nn::ParameterGroup root;
  nn::Parameter embedding;
  nn::Parameter relative_bias;
  RmsNorm final_norm;
  std::deque<Layer> layers;  // a deque: parameters never move

  at::Tensor bias, bias_table;
  int64_t bias_table_version = 0;
};

T5Encoder::T5Encoder(const T5Config& config) : impl_(std::make_unique<Impl>(config)) {}
T5Encoder::~T5Encoder() = default;
const std::vector<nn::Parameter*>& T5Encoder::parameters() const { return impl_->root.parameters; }

at::Tensor T5Encoder::forward(const at::Tensor& ids) {
  const at::NoGradGuard no_grad;
  at::Tensor x = embed_tokens(ids, impl_->embedding);  // [B, L, D]
  const at::Tensor& bias = impl_->position_bias(ids.size(1));
  for (Layer& layer : impl_->layers) {
    x.add_(layer.attention.forward(layer.attention_norm.forward(x), bias));
    x.add_(layer.feed_forward.forward(layer.feed_forward_norm.forward(x)));
  }
  return impl_->final_norm.forward(x);
}

}  // namespace flowshard::models
