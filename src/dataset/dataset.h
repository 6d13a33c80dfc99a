// Training batches from WebDataset shards, in an order known from (seed, epoch) alone.
//
// The samples of all shards are numbered in the order of the shard list and of each tar. Epoch e visits them
// in a pseudo-random permutation of (seed, e) (sample_order.h). Epochs follow each other without a gap:
// position p of the endless sequence is place p mod n of epoch p / n, so a batch may end one epoch and begin
// the next, and there is no partial batch. Batch b of world_size ranks takes the next world_size * batch_size
// positions, and rank r the r-th batch_size of them. So the samples that have been consumed, and those that
// come next, depend on the position alone: a job resumes exactly, with any number of ranks.
//
// Without shuffling an epoch takes the first samples by number, and is filled up to whole batches of all
// ranks with these from the first on: what stands behind them is there to give every rank as many batches.
//
// A sample whose picture cannot be decoded or whose caption is not UTF-8 is replaced, wherever it comes up,
// by the next one in the numbering that is sound: a rule that no rank needs to tell another.
//
// BatchLoader is used by one thread and owns its worker threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace flowshard::dataset {

struct DatasetOptions {
  std::vector<std::string> shards;  // files, or patterns such as "data/shapes-{000000..000007}.tar"
  int height = 0;                   // every picture is cropped about its centre and resized to this
  int width = 0;
  int batch_size = 1;  // samples of one rank in one batch
  int rank = 0;
  int world_size = 1;
  uint64_t seed = 0;
  bool shuffle = true;
  int64_t max_samples = 0;     // how many by number are used; 0: all
  int64_t start_position = 0;  // samples that all ranks together have consumed before
  int num_threads = 2;
  int prefetch_batches = 2;
  double max_bad_fraction = 0.05;     // of the samples, or of the bytes in damaged shards
  std::chrono::seconds timeout{300};  // for one batch
};

/// The sound samples of a batch, in order of position.
struct Batch {
  std::vector<std::string> keys;      // [B]; "shapes-000003.tar:000003141"
  std::vector<int64_t> sample_ids;    // [B]; of the data in the batch: a substitute has its own
  std::vector<int64_t> epochs;        // [B]
  std::vector<std::string> captions;  // [B]; valid UTF-8
  std::vector<uint8_t> pixels;        // [B, height, width, 3]
};

struct DatasetStats {
  int64_t num_shards = 0;
  int64_t num_damaged_shards = 0;     // read up to the damage
  int64_t num_samples = 0;            // that are used; an epoch
  int64_t num_bad_samples = 0;        // left out of the numbering, or replaced by this rank so far
  std::vector<std::string> problems;  // the first of them by name, one line each
  uint64_t fingerprint = 0;  // of the names and sizes of all samples: differs if the data is not the same
};

class BatchLoader {
 public:
  /// Finds and indexes all shards. Throws ConfigError for options out of range, for shards that do not exist
  /// (all of them by name) and for a data set without a sample; DataError above max_bad_fraction.
  explicit BatchLoader(DatasetOptions options);
  ~BatchLoader();
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  /// The next batch of this rank. Throws DataError above max_bad_fraction and after `timeout`.
  Batch next();

  /// Samples that all ranks together have consumed with the batches returned so far: the start_position of a
  /// loader that goes on from here.
  int64_t position() const;

  DatasetStats stats() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace flowshard::dataset
