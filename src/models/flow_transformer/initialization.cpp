#include <ATen/CPUGeneratorImpl.h>

#include <cmath>

#include "models/flow_transformer/flow_transformer.h"

namespace flowshard::models {
namespace {

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// FNV-1a: the same on every platform, unlike std::hash.
uint64_t hash_of(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (unsigned char c : name) hash = (hash ^ c) * 0x100000001b3;
  return hash;
}

void initialize(nn::Parameter& parameter, uint64_t seed) {
  const std::string& name = parameter.name;
  at::Tensor& value = parameter.value;
  if (name.ends_with(".scale")) {
    value.fill_(1);
  } else if (name.ends_with(".bias") || contains(name, "_mod.") || contains(name, ".modulation.") ||
             name.starts_with("final_layer.")) {
    value.zero_();
  } else {
    const at::Generator generator = at::detail::createCPUGenerator(seed ^ hash_of(name));
    const at::Tensor drawn = at::empty(parameter.shape, at::kFloat);
    if (name.starts_with("time_in.") || name.starts_with("guidance_in.") || name.starts_with("vector_in.")) {
      drawn.normal_(0, 0.02, generator);
    } else {
      const double bound = std::sqrt(6.0 / static_cast<double>(parameter.shape[0] + parameter.shape[1]));
      drawn.uniform_(-bound, bound, generator);
    }
    value.copy_(drawn);
  }
}

}  // namespace

void initialize_random(const std::vector<nn::Parameter*>& parameters, uint64_t seed) {
  at::NoGradGuard no_grad;
  for (nn::Parameter* parameter : parameters) initialize(*parameter, seed);
}

}  // namespace flowshard::models
