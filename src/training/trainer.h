// The training run of one rank: data, encoders, sharded transformer, optimizer, records, checkpoints.
#pragma once

#include <filesystem>

#include "distributed/environment.h"
#include "training/train_config.h"

namespace flowshard::training {

/// Where a run starts from.
struct Resume {
  enum class From {
    kNothing,     // step 0; an output folder that holds checkpoints is an error
    kOutput,      // the newest complete checkpoint of the output folder, if there is one
    kCheckpoint,  // `path`: a checkpoint, or the output folder of a run (RunCheckpoints::load_from)
  };
  From from = From::kNothing;
  std::filesystem::path path = {};
};

/// Trains to config.train.steps and writes metrics.jsonl and checkpoints under run.output_dir. Every rank of
/// the job calls it. Wrong input is a ConfigError before anything is written; an error later leaves whole
/// checkpoints only, and its message names the step and what it interrupted. A SIGTERM or SIGINT to any rank
/// ends all of them after the step they are in, with a checkpoint: then returns the signal's number, else 0.
int train(const TrainConfig& config, const distributed::Environment& environment, const Resume& resume);

}  // namespace flowshard::training
