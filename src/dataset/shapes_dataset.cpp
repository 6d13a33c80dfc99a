#include "dataset/shapes_dataset.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "core/error.h"
#include "dataset/shapes.h"
#include "dataset/shapes_prompts.h"
#include "dataset/tar_writer.h"
#include "storage/atomic_file.h"

namespace flowshard::dataset {
namespace {

std::string shard_name(int64_t shard) { return fmt::format("shapes-{:06}.tar", shard); }

void check_options(const ShapesDatasetOptions& options) {
  if (options.num_samples < 1 || options.num_samples > 1'000'000'000) {
    throw ConfigError("{} samples: give a number from 1 to 1000000000", options.num_samples);
  }
  if (options.samples_per_shard < 1) {
    throw ConfigError("{} samples per shard: give at least 1", options.samples_per_shard);
  }
  check(options.num_single_prompts >= 0 && options.num_pair_prompts >= 0,
        "numbers of prompts are not negative");
}

// A shard left from a larger set would silently be trained on together with the new ones.
void prepare_folder(const std::filesystem::path& folder, int64_t num_shards) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw ConfigError("cannot create the folder {}: {}", folder.string(), error.message());
  std::set<std::string> replaced;
  for (int64_t shard = 0; shard < num_shards; ++shard) replaced.insert(shard_name(shard));
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("shapes-") && name.ends_with(".tar") && !replaced.contains(name)) {
      throw ConfigError("{} holds {} of another data set: delete it or choose another folder",
                        folder.string(), name);
    }
  }
}

}  // namespace

ShapesDatasetSummary write_shapes_dataset(const ShapesDatasetOptions& options,
                                          const std::function<void(int64_t)>& progress) {
  check_options(options);
  ShapesDatasetSummary summary{.num_samples = options.num_samples};
  summary.num_shards = (options.num_samples + options.samples_per_shard - 1) / options.samples_per_shard;
  prepare_folder(options.output, summary.num_shards);

  storage::AtomicFile prompts(options.output / "heldout.jsonl");
  prompts.write(
      to_json_lines(held_out_prompts(options.seed, options.num_single_prompts, options.num_pair_prompts)));
  prompts.publish();
  for (int64_t shard = 0; shard < summary.num_shards; ++shard) {
    TarWriter tar(options.output / shard_name(shard));
    const int64_t begin = shard * options.samples_per_shard;
    const int64_t end = std::min(begin + options.samples_per_shard, options.num_samples);
    for (int64_t index = begin; index < end; ++index) {
      const Scene scene = training_scene(options.seed, static_cast<uint64_t>(index));
      const std::string key = fmt::format("{:09}", index);
      tar.add(key + ".png", image::encode_png(draw(scene)));
      tar.add(key + ".txt", caption(scene));
      tar.add(key + ".json", to_json(scene).dump());
      if (scene.objects.size() == 2) ++summary.num_pairs;
    }
    tar.finish();
    if (progress) progress(end);
  }
  return summary;
}

}  // namespace flowshard::dataset
