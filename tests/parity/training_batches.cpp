#include <fmt/format.h>

#include "dataset/dataset.h"
#include "flow_matching/loss.h"
#include "flow_matching/schedule.h"
#include "model_folder/model_folder.h"
#include "parity.h"
#include "training/sample_encoder.h"
#include "training/train_config.h"

namespace flowshard::parity {

// What rank "rank" of "world_size" trains on in the first "num_steps" steps of the configuration file of the
// arguments, without accumulation: "x0.0" [B, L, C], "noise.0" [B, L, C], "t.0" [B], "txt.0" [B, T, D], "y.0"
// [B, P], "x0.1", ...
Result training_batches(const Request& request) {
  const training::TrainConfig config = training::load_train_config(request.arguments.at(0), {});
  const auto seed = static_cast<uint64_t>(config.run.seed);
  dataset::BatchLoader loader({.shards = config.data.shards,
                               .height = static_cast<int>(config.data.height),
                               .width = static_cast<int>(config.data.width),
                               .batch_size = static_cast<int>(config.train.batch_size),
                               .rank = request.options.at("rank"),
                               .world_size = request.options.at("world_size"),
                               .seed = seed});
  training::SampleEncoder encoder(ModelFolder::open(config.model.path), config, at::kFloat);
  Result result;
  for (int64_t step = 0; step < request.options.at("num_steps").get<int64_t>(); ++step) {
    const dataset::Batch batch = loader.next();
    const training::EncodedBatch encoded = encoder.encode(batch);
    std::vector<flow_matching::SampleKey> keys;
    for (size_t i = 0; i < batch.sample_ids.size(); ++i)
      keys.push_back({static_cast<uint64_t>(batch.sample_ids[i]), static_cast<uint64_t>(batch.epochs[i])});
    const double mu = config.flow.shift == training::Shift::kResolution
                          ? flow_matching::shift_mu({}, encoded.x0.size(1))
                          : 0.0;
    const flow_matching::NoisyBatch noisy =
        add_noise(encoded.x0, seed, keys, {config.flow.timestep_mean, config.flow.timestep_std, mu});
    const auto add = [&](const char* name, const at::Tensor& tensor) {
      result.tensors.emplace_back(fmt::format("{}.{}", name, step), tensor.contiguous());
    };
    add("x0", encoded.x0);
    add("noise", noisy.target + encoded.x0);
    add("t", noisy.t);
    add("txt", encoded.txt);
    add("y", encoded.y);
  }
  return result;
}

}  // namespace flowshard::parity
