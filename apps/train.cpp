#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "distributed/environment.h"
#include "overrides.h"
#include "subcommands.h"
#include "training/train_config.h"
#include "training/trainer.h"

namespace flowshard::apps {
namespace {

struct TrainOptions {
  std::string config_file;
  std::vector<ConfigEntry> overrides;
  training::Resume resume;
  bool explain = false;
  bool check = false;
};

/// The options that torchrun and accelerate users know, as overrides of the keys they stand for.
void add_aliases(CLI::App& train, const std::shared_ptr<TrainOptions>& options) {
  const auto override_key = [options](const std::string& assignment, const std::string& option) {
    options->overrides.push_back(parse_assignment(assignment, option));
  };
  train.add_flag_function(
      "--use_fsdp",
      [override_key](int64_t count) {
        const std::string strategy = count > 0 ? "full_shard" : "no_shard";
        override_key("parallel.strategy=" + strategy, "--use_fsdp");
      },
      "The same as --set parallel.strategy=full_shard");
  train
      .add_option_function<std::string>(
          "--mixed_precision",
          [override_key](const std::string& mode) {
            override_key("precision.mode=" + (mode == "no" ? "fp32" : mode), "--mixed_precision");
          },
          "The same as --set precision.mode; no: fp32")
      ->check(CLI::IsMember({"no", "fp16", "bf16"}));
  train.add_option_function<std::string>(
      "--gradient_accumulation_steps",
      [override_key](const std::string& text) {
        override_key("train.gradient_accumulation_steps=" + text, "--gradient_accumulation_steps");
      },
      "The same as --set train.gradient_accumulation_steps");
  train.add_option_function<std::string>(
      "--device", [override_key](const std::string& text) { override_key("run.device=" + text, "--device"); },
      "The same as --set run.device");
}

void run_train(const TrainOptions& options) {
  if (options.explain) {
    fmt::print("{}", training::explain_train_config());
    return;
  }
  if (options.config_file.empty()) {
    throw ConfigError("name a configuration: flowshard train CONFIG.toml");
  }
  const training::TrainConfig config = training::load_train_config(options.config_file, options.overrides);
  if (options.check) {
    fmt::print("{}", training::to_toml(config));
    return;
  }
  const int signal = training::train(config, distributed::Environment::from_variables(), options.resume);
  if (signal != 0) throw CLI::RuntimeError(128 + signal);
}

}  // namespace

void add_train(CLI::App& app) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* train = app.add_subcommand("train", "Train as a TOML configuration says");
  train->add_option("CONFIG", options->config_file, "Configuration file (TOML)");
  add_aliases(*train, options);
  add_overrides(*train, options->overrides);
  train
      ->add_option_function<std::string>(
          "--resume",
          [options](const std::string& from) {
            using From = training::Resume::From;
            options->resume.from = from == "never"  ? From::kNothing
                                   : from == "auto" ? From::kOutput
                                                    : From::kCheckpoint;
            options->resume.path = from;
          },
          "auto: go on from the newest checkpoint of run.output_dir, if there is one; never (default): start "
          "anew; or a checkpoint or the output folder of another run: a new run starts from there")
      ->type_name("auto|never|PATH");
  train->add_flag("--check", options->check, "Check the configuration and print it with all defaults");
  train->add_flag("--explain", options->explain, "Print every key with allowed values, default and meaning");
  train->footer(
      "Examples:\n"
      "  flowshard launch --nproc_per_node 2 -- train configs/quickstart.toml --resume auto\n"
      "  flowshard train run.toml --resume runs/a/checkpoints/step-00000200 --set run.output_dir=runs/b\n"
      "  flowshard train configs/quickstart.toml --check --set train.steps=100 --set "
      "run.output_dir=runs/try\n"
      "  flowshard train --explain");
  train->callback([options] { run_train(*options); });
}

}  // namespace flowshard::apps
