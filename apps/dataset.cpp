#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "core/standard_streams.h"
#include "dataset/shapes_dataset.h"
#include "subcommands.h"

namespace flowshard::apps {
namespace {

void write_shapes(const dataset::ShapesDatasetOptions& options) {
  const dataset::ShapesDatasetSummary summary = dataset::write_shapes_dataset(
      options, [&](int64_t written) { print_line("wrote {} of {} samples", written, options.num_samples); });
  fmt::print(
      "{}: {} samples ({} single shapes, {} pairs) in {} shards, {} held-out prompts in heldout.jsonl\n",
      options.output.string(), summary.num_samples, summary.num_samples - summary.num_pairs,
      summary.num_pairs, summary.num_shards, options.num_single_prompts + options.num_pair_prompts);
}

void add_shapes_command(CLI::App& dataset) {
  auto options = std::make_shared<dataset::ShapesDatasetOptions>();
  CLI::App* shapes = dataset.add_subcommand("shapes", "Make the coloured-shapes data set");
  shapes->add_option("--output", options->output, "Folder for the shards and heldout.jsonl")->required();
  shapes->add_option("--num-samples", options->num_samples, "Training samples")->capture_default_str();
  shapes->add_option("--samples-per-shard", options->samples_per_shard, "Samples in one tar file")
      ->capture_default_str();
  shapes->add_option("--seed", options->seed, "The same seed gives the same files")->capture_default_str();
  shapes->footer("Example:\n  flowshard dataset shapes --output data/shapes --num-samples 8192");
  shapes->callback([options] { write_shapes(*options); });
}

}  // namespace

void add_dataset(CLI::App& app) {
  CLI::App* dataset = app.add_subcommand("dataset", "Make and inspect training data");
  dataset->require_subcommand(1);
  add_shapes_command(*dataset);
}

}  // namespace flowshard::apps
