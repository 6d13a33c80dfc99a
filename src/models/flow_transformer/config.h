// The shape of a FLUX transformer. The defaults are FLUX.1-dev's; field names are those of the official code.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/tensor_names.h"

namespace flowshard::models {

struct FlowTransformerConfig {
  int64_t in_channels = 64;  // of a packed latent token
  int64_t out_channels = 64;
  int64_t vec_in_dim = 768;       // CLIP pooled vector
  int64_t context_in_dim = 4096;  // T5 hidden size
  int64_t hidden_size = 3072;
  int64_t mlp_hidden_dim = 12288;
  int64_t num_heads = 24;
  int64_t depth = 19;
  int64_t depth_single_blocks = 38;
  std::vector<int64_t> axes_dim = {16, 56, 56};
  double theta = 10000;
  bool guidance_embed = true;

  int64_t head_dim() const { return hidden_size / num_heads; }

  /// Reads a diffusers transformer/config.json. Throws ConfigError naming file and key if the file is absent,
  /// is of another model class or contradicts itself.
  static FlowTransformerConfig from_diffusers(const std::filesystem::path& config_json);

  /// Infers it from the shapes in a file of the official code (flux1-dev.safetensors). How a head's
  /// dimensions are shared between the axes shapes do not tell: heads of 128 have FLUX.1's 16, 56, 56, others
  /// need the metadata "axes_dim" ("4,6,6"). Throws CheckpointError if that or a tensor is missing or
  /// contradicts others.
  static FlowTransformerConfig from_bfl(const TensorListing& file);

  /// What from_bfl needs beside the shapes.
  std::map<std::string, std::string> bfl_metadata() const;
  /// A diffusers transformer/config.json. Throws ConfigError if diffusers cannot express it.
  std::string to_diffusers() const;
};

/// Whether these are the tensors of a transformer of the official code.
bool is_flow_transformer_bfl(const TensorListing& file);
/// ... of a diffusers FluxTransformer2DModel.
bool is_flow_transformer_diffusers(const TensorListing& file);

/// The keys of a diffusers FluxTransformer2DModel (https://github.com/huggingface/diffusers,
/// convert_flux_to_diffusers).
TensorNames flow_transformer_diffusers_names(const FlowTransformerConfig& config);

/// The keys of the official code, which are our names.
TensorNames flow_transformer_bfl_names(const FlowTransformerConfig& config);

}  // namespace flowshard::models
