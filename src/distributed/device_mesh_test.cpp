#include "distributed/device_mesh.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "distributed/thread_ranks.h"

namespace flowshard::distributed {
namespace {

constexpr std::chrono::seconds kTimeout(20);

float sum_over(ProcessGroup& group, int rank) {
  const at::Tensor value = at::full({1}, static_cast<float>(1 << rank));
  group.all_reduce_sum(value)->wait();
  return value.item<float>();
}

// Each rank adds 2^rank, so a sum says which ranks took part.
TEST(DeviceMesh, RowsShareAModelAndColumnsAShard) {
  run_thread_ranks(6, kTimeout, [](ProcessGroup& world) {
    const DeviceMesh mesh(world, 3);
    const int rank = world.rank();
    EXPECT_EQ(mesh.shard().world_size(), 3);
    EXPECT_EQ(mesh.shard().rank(), rank % 3);
    EXPECT_EQ(mesh.replicate().world_size(), 2);
    EXPECT_EQ(mesh.replicate().rank(), rank / 3);
    EXPECT_EQ(sum_over(mesh.shard(), rank), rank < 3 ? 1 + 2 + 4 : 8 + 16 + 32);
    EXPECT_EQ(sum_over(mesh.replicate(), rank), (1 << (rank % 3)) + (8 << (rank % 3)));
    EXPECT_EQ(sum_over(mesh.world(), rank), 63);
  });
}

TEST(DeviceMesh, OneRowAndOneColumn) {
  run_thread_ranks(3, kTimeout, [](ProcessGroup& world) {
    const DeviceMesh row(world, 3), column(world, 1);
    EXPECT_EQ(&row.shard(), &world);
    EXPECT_EQ(row.replicate().world_size(), 1);
    EXPECT_EQ(column.shard().world_size(), 1);
    EXPECT_EQ(&column.replicate(), &world);
  });
}

TEST(DeviceMesh, RefusesGroupsThatDoNotDivideTheRanks) {
  run_thread_ranks(1, kTimeout, [](ProcessGroup& world) { EXPECT_THROW(DeviceMesh(world, 2), ConfigError); });
  run_thread_ranks(3, kTimeout, [](ProcessGroup& world) { EXPECT_THROW(DeviceMesh(world, 2), ConfigError); });
}

TEST(DeviceMesh, AnErrorNamesTheRankOfTheJob) {
  run_thread_ranks(4, std::chrono::seconds(2), [](ProcessGroup& world) {
    const DeviceMesh mesh(world, 2);
    if (world.rank() == 3) return;
    try {
      sum_over(mesh.shard(), world.rank());
      EXPECT_LT(world.rank(), 2);
    } catch (const CommError& error) {
      EXPECT_EQ(world.rank(), 2);
      const std::string text = error.what();
      EXPECT_TRUE(text.starts_with("rank 2 of 4: all_reduce of 1 Float failed")) << text;
      EXPECT_NE(text.find("no sign of rank 3"), std::string::npos) << text;
    }
  });
}

}  // namespace
}  // namespace flowshard::distributed
