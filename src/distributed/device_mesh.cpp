#include "distributed/device_mesh.h"

#include <fmt/format.h>

#include <vector>

#include "core/error.h"

namespace flowshard::distributed {
namespace {

std::vector<int> every(int first, int step, int count) {
  std::vector<int> ranks;
  for (int i = 0; i < count; ++i) ranks.push_back(first + i * step);
  return ranks;
}

}  // namespace

DeviceMesh::DeviceMesh(ProcessGroup& world, int shard_size) : world_(world) {
  const int size = world.world_size(), rank = world.rank();
  if (shard_size < 1 || size % shard_size != 0) {
    throw ConfigError(
        "{} ranks cannot be shared out in groups of {}: parallel.shard_size must divide the number of ranks",
        size, shard_size);
  }
  const int row = rank / shard_size, column = rank % shard_size;
  if (shard_size < size) {
    own_shard_ = world.subgroup(every(row * shard_size, 1, shard_size), fmt::format("shard-{}", row));
  }
  if (shard_size > 1) {
    own_replicate_ =
        world.subgroup(every(column, shard_size, size / shard_size), fmt::format("replicate-{}", column));
  }
}

}  // namespace flowshard::distributed
