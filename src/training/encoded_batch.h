// What the transformer trains on. Shapes: B batch, L image tokens, C channels of a token, T text tokens.
#pragma once

#include <ATen/ATen.h>

namespace flowshard::training {

struct EncodedBatch {
  at::Tensor x0;   // [B, L, C] fp32, packed latents: (posterior mean - shift) * scale
  at::Tensor txt;  // [B, T, context_in_dim]
  at::Tensor y;    // [B, vec_in_dim]
};

}  // namespace flowshard::training
