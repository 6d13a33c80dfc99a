// The batches of one rank, as the configuration lays them out. What is bad in the data is a warning on stderr
// when it is met. Used by one thread.
#pragma once

#include "dataset/dataset.h"
#include "distributed/environment.h"
#include "training/train_config.h"

namespace flowshard::training {

/// Of the training samples from the first on.
dataset::DatasetOptions dataset_options(const TrainConfig& config,
                                        const distributed::Environment& environment);

class BatchSource {
 public:
  /// Throws as dataset::BatchLoader does.
  explicit BatchSource(dataset::DatasetOptions options);

  dataset::Batch next();
  dataset::DatasetStats stats() const { return loader_.stats(); }

 private:
  void warn_of_bad_samples();

  dataset::BatchLoader loader_;
  size_t num_problems_named_ = 0;
};

}  // namespace flowshard::training
