#include <cmath>

#include "core/error.h"
#include "models/lora/lora.h"

namespace flowshard::models {
namespace {

/// magnitude / ||W + scale up down|| of each row, in fp32.
at::Tensor row_scale(const LoraAdapter& adapter, const nn::LowRankTerm& term) {
  const at::Tensor& weight = adapter.parameter->value;
  const at::ScalarType wide = weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor rows = weight.narrow(0, adapter.row, term.up.size(0)).to(wide);
  const at::Tensor adapted = at::addmm(rows, term.up.to(wide), term.down.to(wide), 1, term.scale);
  const at::Tensor norms = at::linalg_vector_norm(adapted, 2, {1});
  return adapter.magnitude.to(norms.options()).div(norms);
}

}  // namespace

void attach_lora(const std::string& name, const std::vector<LoraAdapter>& adapters, double scale) {
  if (!std::isfinite(scale))
    throw ConfigError("LoRA {}: the scale is {}: it must be a finite number", name, scale);
  const at::NoGradGuard no_grad;
  for (const LoraAdapter& adapter : adapters) {
    check(adapter.parameter->value.defined(), "adapters are attached to materialized weights");
    const auto options = adapter.parameter->value.options();
    // The tensors of a file may be views of its mapping: here they become the model's own.
    nn::LowRankTerm term{.adapter = name,
                         .down = adapter.down.to(options, /*non_blocking=*/false, /*copy=*/true),
                         .up = adapter.up.to(options, /*non_blocking=*/false, /*copy=*/true),
                         .scale = scale * adapter.scaling,
                         .row = adapter.row,
                         .row_scale = {}};
    if (adapter.magnitude.defined()) term.row_scale = row_scale(adapter, term);
    adapter.parameter->low_rank.push_back(std::move(term));
  }
}

void detach_lora(const std::string& name, const std::vector<nn::Parameter*>& parameters) {
  for (nn::Parameter* parameter : parameters) {
    std::erase_if(parameter->low_rank, [&](const nn::LowRankTerm& term) { return term.adapter == name; });
  }
}

}  // namespace flowshard::models
