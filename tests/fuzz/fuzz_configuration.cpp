// The JSON configurations in a model folder, each by every reader: the class name in it picks the one that
// goes on.
#include "core/error.h"
#include "core/json_config.h"
#include "flow_matching/schedule.h"
#include "fuzz.h"
#include "models/autoencoder/autoencoder_config.h"
#include "models/flow_transformer/config.h"
#include "models/text_encoder/clip_text_config.h"
#include "models/text_encoder/t5_config.h"

using namespace flowshard;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::MemoryFile file;
  file.set(data, size);
  const std::filesystem::path path = file.path();
  const auto read = [](auto reader) { fuzz::expect_result_or_error<ConfigError>(reader); };
  read([&] { JsonConfig(path).text("_class_name"); });
  read([&] {
    const auto config = models::FlowTransformerConfig::from_diffusers(path);
    fuzz::require(config.hidden_size > 0 && config.mlp_hidden_dim > 0 && config.axes_dim.size() == 3,
                  "it has sizes");
  });
  read([&] {
    fuzz::require(models::AutoencoderConfig::from_file(path).downsampling() >= 1, "pixels make a latent");
  });
  read([&] { fuzz::require(models::ClipTextConfig::from_file(path).hidden_size > 0, "it has sizes"); });
  read([&] { fuzz::require(models::T5Config::from_file(path).d_model > 0, "it has sizes"); });
  read([&] {
    const auto sigmas = get_schedule(flow_matching::ScheduleConfig::from_file(path), 4, 1024);
    fuzz::require(sigmas.size() == 5 && sigmas.back() == 0, "a schedule ends at 0");
    for (const float sigma : sigmas) fuzz::require(sigma >= 0 && sigma <= 1, "sigmas are from 0 to 1");
  });
  return 0;
}
