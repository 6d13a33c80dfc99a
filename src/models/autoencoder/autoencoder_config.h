// The shape of FLUX's image autoencoder, and where files give it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/tensor_names.h"

namespace flowshard::models {

struct AutoencoderConfig {
  std::vector<int64_t> block_out_channels = {128, 256, 512, 512};
  int64_t layers_per_block = 2;
  int64_t in_channels = 3;
  int64_t latent_channels = 16;
  int64_t norm_num_groups = 32;
  double scaling_factor = 0.3611;
  double shift_factor = 0.1159;
  bool use_quant_conv = false;  // 1x1 convolutions around the latent, present in older autoencoders
  bool use_post_quant_conv = false;
  bool mid_block_add_attention = true;

  int64_t downsampling() const { return int64_t{1} << (block_out_channels.size() - 1); }

  /// Reads a diffusers vae/config.json. Throws ConfigError naming file and key if it is absent or does not
  /// fit.
  static AutoencoderConfig from_file(const std::filesystem::path& config_json);

  /// Infers it from the shapes in a file of the official code (ae.safetensors). What shapes do not tell is
  /// FLUX.1's (32 norm groups; scaling and shift for 16 latent channels) unless the metadata say otherwise
  /// ("norm_num_groups", "scaling_factor", "shift_factor"). Throws CheckpointError.
  static AutoencoderConfig from_bfl(const TensorListing& file);

  /// What from_bfl needs beside the shapes.
  std::map<std::string, std::string> bfl_metadata() const;
  /// A diffusers vae/config.json.
  std::string to_diffusers() const;
};

}  // namespace flowshard::models
