// flowshard_parity: a test-only program that runs one piece of Flowshard on tensors from a file, so that
// pytest can compare it with the reference packages. One function a subcommand, each in a file named after
// it; its row in the table of parity_runner.cpp makes it callable.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"

namespace flowshard::parity {

struct Request {
  checkpoint::SafetensorsFile inputs;
  nlohmann::json options;              // an object
  std::vector<std::string> arguments;  // such as a model folder
};

struct Result {
  std::vector<checkpoint::NamedTensor> tensors;
  checkpoint::Metadata metadata;
};

Result dataset_batches(const Request& request);
Result image_decode(const Request& request);
Result lora(const Request& request);
Result safetensors_check(const Request& request);
Result safetensors_copy(const Request& request);
Result clip(const Request& request);
Result t5(const Request& request);
Result t5_buckets(const Request& request);
Result vae_encode(const Request& request);
Result vae_decode(const Request& request);
Result training_batches(const Request& request);
Result transformer(const Request& request);
Result schedule(const Request& request);

}  // namespace flowshard::parity
