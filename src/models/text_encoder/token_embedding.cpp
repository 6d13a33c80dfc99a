#include "models/text_encoder/token_embedding.h"

#include "core/error.h"

namespace flowshard::models {

at::Tensor embed_tokens(const at::Tensor& ids, const nn::Parameter& table) {
  check(ids.dim() == 2 && ids.scalar_type() == at::kLong && ids.numel() > 0,
        "token ids must be int64 [B, L]");
  check(table.value.defined(), table.name + " is used before it has a value");
  const auto [least, most] = at::aminmax(ids);
  const int64_t vocabulary = table.shape[0];
  for (const int64_t id : {least.item<int64_t>(), most.item<int64_t>()}) {
    if (id < 0 || id >= vocabulary) {
      throw ConfigError(
          "token id {} is outside the text encoder's vocabulary of {}: its tokenizer belongs to another "
          "model",
          id, vocabulary);
    }
  }
  return at::embedding(table.value, ids.to(table.value.device()));
}

}  // namespace flowshard::models
