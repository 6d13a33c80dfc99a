// The ranks of a job as a grid [replicas, shards]: consecutive ranks share a row, so that with one row a host
// shards stay within it. Every rank builds the same mesh. One thread at a time.
#pragma once

#include <memory>

#include "distributed/process_group.h"

namespace flowshard::distributed {

class DeviceMesh {
 public:
  /// `world` outlives the mesh. Throws ConfigError unless `shard_size` divides its size, CommError.
  DeviceMesh(ProcessGroup& world, int shard_size);

  ProcessGroup& world() const { return world_; }
  /// The ranks that hold one whole model together: this rank's row.
  ProcessGroup& shard() const { return own_shard_ ? *own_shard_ : world_; }
  /// The ranks that hold the same shard: this rank's column.
  ProcessGroup& replicate() const { return own_replicate_ ? *own_replicate_ : world_; }

 private:
  ProcessGroup& world_;
  std::unique_ptr<ProcessGroup> own_shard_, own_replicate_;  // null: the world itself
};

}  // namespace flowshard::distributed
