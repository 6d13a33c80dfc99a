// Text and image to image with one model on one device.
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
#include "inference/request.h"
#include "model_folder/text_conditioning.h"

namespace flowshard::inference {

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

/// What the caller may follow while an image is made. Throwing from either function ends it.
struct Observer {
  std::function<void(int64_t step, int64_t num_steps)> progress;  // after step i of n
  /// After every `preview_every` steps but the last: the image as that step sees it, x - sigma v.
  std::function<void(int64_t step, const image::Image& image)> preview;
  int64_t preview_every = 0;  // 0: never
};

class Pipeline {
 public:
  /// Opens every part and checks that all fit together and into the device's memory, then loads what stays
  /// on the device. Throws ConfigError or CheckpointError.
  explicit Pipeline(const PipelineOptions& options);
  ~Pipeline();

  /// What inference::validated() needs: call that for all requests before the first image.
  int64_t size_multiple() const;  // 16 for FLUX.1

  const std::vector<LoadedLora>& loras() const;

  /// Encodes the prompts of these requests in one go and keeps the results in host memory for generate().
  /// Needed only with low_memory, where generate() otherwise loads the text encoders again for each request.
  void prepare(const std::vector<Request>& requests);

  /// One image, made alone. Throws DataError if the result is not finite, ConfigError if its init image
  /// cannot be read any more.
  image::Image generate(const Request& request, const Observer& observer = {});

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
