#include "dataset/shard_list.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "core/temporary_folder.h"

namespace flowshard::dataset {
namespace {

namespace fs = std::filesystem;
using Paths = std::vector<fs::path>;

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(ShardList, PatternsStandForTheirNamesInOrder) {
  EXPECT_EQ(expand_shards({"a.tar"}), (Paths{"a.tar"}));
  EXPECT_EQ(expand_shards({"s-{098..101}.tar"}), (Paths{"s-098.tar", "s-099.tar", "s-100.tar", "s-101.tar"}));
  EXPECT_EQ(expand_shards({"{x,y}/{0..1}.tar", "z"}),
            (Paths{"x/0.tar", "x/1.tar", "y/0.tar", "y/1.tar", "z"}));
  EXPECT_EQ(expand_shards({"a{,b}"}), (Paths{"a", "ab"}));
}

TEST(ShardList, MalformedPatternsAreNamed) {
  for (const std::string pattern : {"a{0..b}", "a{3..1}", "a{0..1", "a0..1}", "a{x}", "a{}", "a{0..99999999}",
                                    "{-1..2}", "{0..999999}{0..9}"}) {
    EXPECT_NE(error_of([&] { expand_shards({pattern}); }).find(pattern), std::string::npos) << pattern;
  }
}

TEST(ShardList, AllMissingShardsAreNamedAtOnce) {
  const TemporaryFolder folder;
  std::ofstream(folder / "0.tar") << "x";
  const std::string prefix = (folder / "").string();
  EXPECT_NO_THROW(require_shards(expand_shards({prefix + "0.tar"})));
  const std::string error = error_of([&] {
    require_shards(expand_shards({prefix + "{0..2}.tar", prefix + "x/"}));
  });
  EXPECT_NE(error.find("3 of 4 shards"), std::string::npos) << error;
  for (const char* name : {"1.tar", "2.tar", "x/"})
    EXPECT_NE(error.find(prefix + name), std::string::npos) << error;
  EXPECT_NE(
      error_of([&] { require_shards(expand_shards({prefix + "{0..5000}.tar"})); }).find("and 4980 more"),
      std::string::npos);
  EXPECT_NE(error_of([&] { require_shards({}); }).find("no shards"), std::string::npos);
  EXPECT_NE(error_of([&] {
              require_shards({folder / "0.tar", folder / "./0.tar"});
            }).find("twice"),
            std::string::npos);
}

}  // namespace
}  // namespace flowshard::dataset
