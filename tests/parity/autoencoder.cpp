#include "models/autoencoder/autoencoder.h"

#include "load_model.h"

namespace flowshard::parity {
namespace {

std::unique_ptr<models::Autoencoder> open_autoencoder(const Request& request) {
  const std::filesystem::path folder = request.arguments.at(0);
  const auto config = models::AutoencoderConfig::from_file(folder / "config.json");
  auto model = std::make_unique<models::Autoencoder>(config);
  load(*model, dtype_of(request), checkpoint::Weights::open(folder), autoencoder_diffusers_names(config));
  return model;
}

}  // namespace

// Each picture batch K by itself, to K.mean and K.logvar.
Result vae_encode(const Request& request) {
  const auto autoencoder = open_autoencoder(request);
  Result result;
  for (const auto& [key, info] : request.inputs.tensors()) {
    const auto posterior = autoencoder->encode(request.inputs.tensor(key).to(dtype_of(request)));
    result.tensors.emplace_back(key + ".mean", posterior.mean);
    result.tensors.emplace_back(key + ".logvar", posterior.logvar);
  }
  return result;
}

Result vae_decode(const Request& request) {
  const auto autoencoder = open_autoencoder(request);
  Result result;
  for (const auto& [key, info] : request.inputs.tensors()) {
    result.tensors.emplace_back(key, autoencoder->decode(request.inputs.tensor(key).to(dtype_of(request))));
  }
  return result;
}

}  // namespace flowshard::parity
