// Usage: flowshard_parity SUBCOMMAND IN.safetensors OUT.safetensors [OPTIONS_JSON [ARGUMENT...]]
#include <cstdio>

#include "core/error.h"
#include "parity.h"

namespace flowshard::parity {
namespace {

const std::map<std::string, Result (*)(const Request&)> kSubcommands = {
    {"dataset-batches", dataset_batches},
    {"image-decode", image_decode},
    {"lora", lora},
    {"safetensors-check", safetensors_check},
    {"safetensors-copy", safetensors_copy},
    {"clip", clip},
    {"t5", t5},
    {"t5-buckets", t5_buckets},
    {"vae-encode", vae_encode},
    {"vae-decode", vae_decode},
    {"training-batches", training_batches},
    {"transformer", transformer},
    {"schedule", schedule},
};

void run(const std::vector<std::string>& words) {
  if (words.size() < 3) throw ConfigError("usage: SUBCOMMAND IN OUT [OPTIONS_JSON [ARGUMENT...]]");
  const auto subcommand = kSubcommands.find(words[0]);
  if (subcommand == kSubcommands.end()) throw ConfigError("there is no subcommand {}", words[0]);
  const Request request{
      .inputs = checkpoint::SafetensorsFile(words[1]),
      .options = nlohmann::json::parse(words.size() > 3 ? words[3] : "{}"),
      .arguments = {words.begin() + static_cast<int64_t>(std::min<size_t>(words.size(), 4)), words.end()}};
  const Result result = subcommand->second(request);
  checkpoint::write_safetensors(words[2], result.tensors, result.metadata);
}

}  // namespace
}  // namespace flowshard::parity

int main(int argc, char** argv) {
  try {
    flowshard::parity::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    fmt::print(stderr, "flowshard_parity: error: {}\n", error.what());
    return static_cast<int>(flowshard::exit_code_of(error));
  }
  return 0;
}
