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
#include "inference/memory_plan.h"
#include "model_folder/text_conditioning.h"

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
  LowMemory low_memory = LowMemory::kNone;
  int64_t max_height = 1024, max_width = 1024;  // of the pictures that will be asked for: what must fit
};

/// What one kind of work has taken so far.
struct PhaseReport {
  double seconds = 0;
  int64_t peak_bytes = 0;  // of a GPU; 0 on a CPU
};

struct PipelineReport {
  int64_t loaded_bytes = 0;
  double load_seconds = 0;
  PhaseReport encode, denoise, decode;
  size_t num_streamed_blocks = 0;
};

/// After step i of n.
using Progress = std::function<void(int64_t step, int64_t num_steps)>;

class Pipeline {
 public:
  /// Opens every part and checks that all fit together and into the device's memory, then loads what stays
  /// on the device. Throws ConfigError or CheckpointError.
  explicit Pipeline(const PipelineOptions& options);
  ~Pipeline();

  /// Throws ConfigError if a field of the request is impossible: call it for all requests before the first
  /// image. Returns the request with the size that will be made: height and width are rounded down to
  /// multiples of size_multiple(), as diffusers does.
  Request validated(const Request& request) const;
  int64_t size_multiple() const;  // 16 for FLUX.1

  const std::vector<LoadedLora>& loras() const;

  /// Encodes the prompts of these requests in one go and keeps the results in host memory for generate().
  /// Needed only with low_memory, where generate() otherwise loads the text encoders again for each request.
  void prepare(const std::vector<Request>& requests);

  /// One image, made alone. Throws InternalError if the result is not finite.
  image::Image generate(const Request& request, const Progress& progress = {});

  /// Which parts were found where, if options.model did not say; else "".
  const std::string& found() const;

  /// The words of the prompt that CLIP or T5 would not see.
  TruncatedWords truncated_words(const Request& request) const;

  const PipelineReport& report() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace flowshard::inference
