// Text to image with one model on one device.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "image/image.h"
#include "inference/load_transformer.h"
#include "inference/loras.h"

namespace flowshard::inference {

/// One image. What it looks like depends on these fields and the model alone.
struct Request {
  std::string prompt;
  std::string negative_prompt;  // used if true_cfg_scale > 1
  double true_cfg_scale = 1.0;  // > 1: true classifier-free guidance, two model calls a step
  double guidance = 3.5;        // the distilled guidance input; ignored by models without it
  int64_t height = 1024, width = 1024;
  int64_t num_steps = 28;
  int64_t max_sequence_length = 512;  // T5 tokens
  uint64_t seed = 0;
};

struct PipelineOptions {
  ModelPaths model;
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;
  std::vector<LoraOption> loras;  // their effects add up
  bool lora_lenient = false;      // keys that match nothing are left out instead of refused
};

/// After step i of n.
using Progress = std::function<void(int64_t step, int64_t num_steps)>;

class Pipeline {
 public:
  /// Loads every part. Throws ConfigError or CheckpointError before any of them computes.
  explicit Pipeline(const PipelineOptions& options);
  ~Pipeline();

  /// Throws ConfigError if a field of the request is impossible: call it for all requests before the first
  /// image. Returns the request with the size that will be made: height and width are rounded down to
  /// multiples of size_multiple(), as diffusers does.
  Request validated(const Request& request) const;
  int64_t size_multiple() const;  // 16 for FLUX.1

  const std::vector<LoadedLora>& loras() const;

  /// One image, made alone. Throws InternalError if the result is not finite.
  image::Image generate(const Request& request, const Progress& progress = {});

  /// Which parts were found where, if options.model did not say; else "".
  const std::string& found() const;

  /// The words of the prompt that T5 or CLIP would not see ("" if none), for a warning.
  std::string truncated_words(const Request& request);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace flowshard::inference
