#include "models/text_encoder/clip_text_model.h"

#include <algorithm>
#include <deque>

#include "core/error.h"
#include "models/text_encoder/token_embedding.h"
#include "nn/linear.h"

namespace flowshard::models {
namespace {

const std::string kPrefix = "text_model.";

/// The end token of files older than transformers 4.32, wrong ever since: there the end is the highest id.
constexpr int64_t kLegacyEosTokenId = 2;

class LayerNorm {
 public:
  LayerNorm(nn::ParameterGroup& group, const std::string& name, int64_t width, double eps)
      : weight_(name + ".weight", {width}), bias_(name + ".bias", {width}), eps_(eps) {
    group.parameters.insert(group.parameters.end(), {&weight_, &bias_});
  }

  at::Tensor forward(const at::Tensor& x) const {
    return at::layer_norm(x, weight_.shape, weight_.value, bias_.value, eps_);
  }

 private:
  nn::Parameter weight_, bias_;
  double eps_;
};

class CausalSelfAttention {
 public:
  CausalSelfAttention(nn::ParameterGroup& group, const std::string& name, const ClipTextConfig& config)
      : num_heads_(config.num_attention_heads),
        k_proj_(group, name + ".k_proj", config.hidden_size, config.hidden_size),
        v_proj_(group, name + ".v_proj", config.hidden_size, config.hidden_size),
        q_proj_(group, name + ".q_proj", config.hidden_size, config.hidden_size),
        out_proj_(group, name + ".out_proj", config.hidden_size, config.hidden_size) {}

  at::Tensor forward(const at::Tensor& x) {           // [B, L, D]
    const auto heads = [&](nn::Linear& projection) {  // [B, heads, L, D / heads]
      return projection.forward(x).unflatten(-1, {num_heads_, -1}).transpose(1, 2);
    };
    const at::Tensor out =
        at::scaled_dot_product_attention(heads(q_proj_), heads(k_proj_), heads(v_proj_),
                                         /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true);
    return out_proj_.forward(out.transpose(1, 2).flatten(2));
  }

 private:
  int64_t num_heads_;
  nn::Linear k_proj_, v_proj_, q_proj_, out_proj_;
};

class FeedForward {
 public:
  FeedForward(nn::ParameterGroup& group, const std::string& name, const ClipTextConfig& config)
      : quick_(config.hidden_act == "quick_gelu"),
        fc1_(group, name + ".fc1", config.hidden_size, config.intermediate_size),
        fc2_(group, name + ".fc2", config.intermediate_size, config.hidden_size) {}

  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = fc1_.forward(x);
    return fc2_.forward(quick_ ? h.mul_(at::sigmoid(h * 1.702)) : at::gelu_(h));
  }

 private:
  bool quick_;
  nn::Linear fc1_, fc2_;
};

struct Layer {
  Layer(nn::ParameterGroup& group, const std::string& name, const ClipTextConfig& config)
      : self_attn(group, name + ".self_attn", config),
        layer_norm1(group, name + ".layer_norm1", config.hidden_size, config.layer_norm_eps),
        mlp(group, name + ".mlp", config),
        layer_norm2(group, name + ".layer_norm2", config.hidden_size, config.layer_norm_eps) {}

  CausalSelfAttention self_attn;
  LayerNorm layer_norm1;
  FeedForward mlp;
  LayerNorm layer_norm2;
};

/// Where the first end token of each sequence is, [B].
at::Tensor end_positions(const at::Tensor& ids, int64_t eos_token_id) {
  if (eos_token_id == kLegacyEosTokenId) return ids.argmax(-1);
  return ids.eq(eos_token_id).to(at::kInt).argmax(-1);
}

}  // namespace

TensorNames clip_text_names(const ClipTextConfig& config, const std::vector<std::string>& stored_keys) {
  const bool prefixed = std::any_of(stored_keys.begin(), stored_keys.end(),
                                    [](const std::string& key) { return key.starts_with(kPrefix); });
  const ClipTextModel model(config);
  TensorNames names;
  for (const nn::Parameter* parameter : model.parameters()) {
    names.push_back({.parameter = parameter->name, .key = (prefixed ? kPrefix : "") + parameter->name});
  }
  return names;
}

struct ClipTextModel::Impl {
  explicit Impl(const ClipTextConfig& config)
      : config(config),
        token_embedding("embeddings.token_embedding.weight", {config.vocab_size, config.hidden_size}),
        position_embedding("embeddings.position_embedding.weight",
                           {config.max_position_embeddings, config.hidden_size}),
        final_layer_norm(root, "final_layer_norm", config.hidden_size, config.layer_norm_eps) {
    root.parameters.insert(root.parameters.end(), {&token_embedding, &position_embedding});
    for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
      layers.emplace_back(root, "encoder.layers." + std::to_string(i), config);
    }
  }

  const ClipTextConfig config;
  nn::ParameterGroup root;
  nn::Parameter token_embedding, position_embedding;
  LayerNorm final_layer_norm;
  std::deque<Layer> layers;  // a deque: parameters never move
};

ClipTextModel::ClipTextModel(const ClipTextConfig& config) : impl_(std::make_unique<Impl>(config)) {}
ClipTextModel::~ClipTextModel() = default;
const std::vector<nn::Parameter*>& ClipTextModel::parameters() const { return impl_->root.parameters; }

at::Tensor ClipTextModel::forward(const at::Tensor& ids) {
  const at::NoGradGuard no_grad;
  check(ids.dim() == 2 && ids.size(1) <= impl_->config.max_position_embeddings,
        "CLIP token ids must be [B, L] with L at most max_position_embeddings");
  // Attention is causal and only the end token is returned: what follows it, most of the 77 tokens, is not
  // computed.
  const at::Tensor end = end_positions(ids, impl_->config.eos_token_id);
  const int64_t length = end.max().item<int64_t>() + 1;
  at::Tensor x = embed_tokens(ids.narrow(1, 0, length), impl_->token_embedding);  // [B, length, D]
  x.add_(impl_->position_embedding.value.narrow(0, 0, length));
  for (Layer& layer : impl_->layers) {
    x.add_(layer.self_attn.forward(layer.layer_norm1.forward(x)));
    x.add_(layer.mlp.forward(layer.layer_norm2.forward(x)));
  }
  const at::Tensor row = at::arange(ids.size(0), end.options());
  return impl_->final_layer_norm.forward(x.index({row, end}));
}

}  // namespace flowshard::models
