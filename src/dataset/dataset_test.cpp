#include "dataset/dataset.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "core/error.h"
#include "core/temporary_folder.h"
#include "dataset/sample_order.h"
#include "dataset/tar_writer.h"
#include "image/image.h"

namespace flowshard::dataset {
namespace {

namespace fs = std::filesystem;

// Sample i: a 4 x 4 picture of the value i and the caption "sample i".
class BatchLoaderTest : public testing::Test {
 protected:
  // Shards of 10 samples; `replaced` holds members with other content.
  void write_shards(int num_samples, const std::map<std::string, std::string>& replaced = {}) {
    for (int begin = 0; begin < num_samples; begin += 10) {
      TarWriter tar(folder_ / fmt::format("s-{}.tar", begin / 10));
      for (int i = begin; i < std::min(begin + 10, num_samples); ++i) {
        const auto png = image::encode_png(
            {.width = 4, .height = 4, .pixels = std::vector<uint8_t>(48, static_cast<uint8_t>(i))});
        for (const auto& [extension, content] : {std::pair{".png", std::string(png.begin(), png.end())},
                                                 {".txt", fmt::format("sample {}", i)}}) {
          const std::string name = fmt::format("{:03}{}", i, extension);
          tar.add(name, replaced.contains(name) ? replaced.at(name) : content);
        }
      }
      tar.finish();
    }
    options_.shards = {(folder_ / fmt::format("s-{{0..{}}}.tar", (num_samples - 1) / 10)).string()};
    options_.height = 4;
    options_.width = 4;
    options_.batch_size = 4;
    options_.max_bad_fraction = 0.5;
  }

  static std::vector<int64_t> ids(BatchLoader& loader, int num_batches) {
    std::vector<int64_t> result;
    for (int i = 0; i < num_batches; ++i) {
      const Batch batch = loader.next();
      result.insert(result.end(), batch.sample_ids.begin(), batch.sample_ids.end());
    }
    return result;
  }

  TemporaryFolder folder_;
  DatasetOptions options_;
};

TEST_F(BatchLoaderTest, ABatchHoldsWhatTheSamplesHold) {
  write_shards(25);
  BatchLoader loader(options_);
  for (int b = 0; b < 20; ++b) {
    const Batch batch = loader.next();
    ASSERT_EQ(batch.pixels.size(), 4U * 48);
    for (int i = 0; i < 4; ++i) {
      const int64_t id = batch.sample_ids[i];
      EXPECT_EQ(batch.keys[i], fmt::format("s-{}.tar:{:03}", id / 10, id));
      EXPECT_EQ(batch.captions[i], fmt::format("sample {}", id));
      EXPECT_EQ(batch.epochs[i], (b * 4 + i) / 25);
      EXPECT_EQ(batch.pixels[i * 48 + 47], id);
    }
  }
  EXPECT_EQ(loader.position(), 80);
}

TEST_F(BatchLoaderTest, TheOrderIsThatOfSeedAndEpochForAnyNumberOfThreads) {
  write_shards(25);
  const SampleOrder order(25, 9);
  options_.seed = 9;
  for (const int num_threads : {1, 2, 5}) {
    options_.num_threads = num_threads;
    options_.prefetch_batches = num_threads;
    BatchLoader loader(options_);
    const std::vector<int64_t> found = ids(loader, 30);
    for (int64_t p = 0; p < 120; ++p) ASSERT_EQ(found[p], order.at(p).sample) << num_threads << " threads";
  }
}

TEST_F(BatchLoaderTest, AnyWorldSizeTakesTheSameSamplesInTheSameBatches) {
  write_shards(5);  // fewer samples than one batch of four ranks
  options_.batch_size = 8;
  BatchLoader alone(options_);
  for (const int world_size : {2, 4, 8}) {
    std::vector<int64_t> together(5 * 8);
    for (int rank = 0; rank < world_size; ++rank) {
      DatasetOptions options = options_;
      options.rank = rank;
      options.world_size = world_size;
      options.batch_size = 8 / world_size;
      BatchLoader loader(options);
      for (int b = 0; b < 5; ++b) {
        const std::vector<int64_t> part = ids(loader, 1);
        std::copy(part.begin(), part.end(), together.begin() + b * 8 + rank * options.batch_size);
      }
      EXPECT_EQ(loader.position(), 40);
    }
    BatchLoader again(options_);
    EXPECT_EQ(together, ids(again, 5)) << world_size;
  }
}

TEST_F(BatchLoaderTest, WithoutShufflingEveryEpochIsTheFirstSamplesInWholeBatches) {
  write_shards(25);
  options_.shuffle = false;
  for (const auto& [max_samples, expected] : {std::pair<int64_t, int64_t>{0, 25}, {9, 9}, {2, 2}, {99, 25}}) {
    options_.max_samples = max_samples;
    for (const int world_size : {1, 3}) {
      const int64_t batch = world_size * 4, num_batches = (expected + batch - 1) / batch;
      for (int rank = 0; rank < world_size; ++rank) {
        options_.rank = rank;
        options_.world_size = world_size;
        BatchLoader loader(options_);
        EXPECT_EQ(loader.stats().num_samples, expected);
        for (int64_t b = 0; b < 2 * num_batches; ++b) {
          const Batch found = loader.next();
          for (int64_t i = 0; i < 4; ++i) {
            EXPECT_EQ(found.sample_ids[i], (b % num_batches * batch + rank * 4 + i) % expected);
            EXPECT_EQ(found.epochs[i], b / num_batches);
          }
        }
      }
    }
  }
}

TEST_F(BatchLoaderTest, ResumesExactlyAlsoWithAnotherWorldSize) {
  write_shards(25);
  BatchLoader whole(options_);
  const std::vector<int64_t> all = ids(whole, 40);
  for (const int batches_before : {1, 5, 20}) {
    BatchLoader before(options_);
    ids(before, batches_before);
    for (const int world_size : {1, 2}) {
      for (int rank = 0; rank < world_size; ++rank) {
        DatasetOptions options = options_;
        options.start_position = before.position();
        options.world_size = world_size;
        options.rank = rank;
        options.batch_size = 4 / world_size;
        BatchLoader resumed(options);
        for (int b = batches_before; b < 40; ++b) {
          const std::vector<int64_t> part = ids(resumed, 1);
          ASSERT_TRUE(std::equal(part.begin(), part.end(), all.begin() + b * 4 + rank * options.batch_size));
        }
      }
    }
  }
}

TEST_F(BatchLoaderTest, UnsoundSamplesAreReplacedByTheNextInTheNumbering) {
  write_shards(25,
               {{"003.png", "<html>"}, {"007.png", ""}, {"008.txt", "\xff"}, {"024.txt", "cat \xe6\xad"}});
  const SampleOrder order(25, 0);
  const std::map<int64_t, int64_t> substitutes{{3, 4}, {7, 9}, {8, 9}, {24, 0}};
  for (const int world_size : {1, 2}) {
    for (int rank = 0; rank < world_size; ++rank) {
      options_.world_size = world_size;
      options_.rank = rank;
      options_.batch_size = 4 / world_size;
      BatchLoader loader(options_);
      for (int64_t b = 0; b < 25; ++b) {
        const std::vector<int64_t> part = ids(loader, 1);
        for (int i = 0; i < options_.batch_size; ++i) {
          const int64_t wanted = order.at(b * 4 + rank * options_.batch_size + i).sample;
          ASSERT_EQ(part[i], substitutes.contains(wanted) ? substitutes.at(wanted) : wanted);
        }
      }
      const DatasetStats stats = loader.stats();
      EXPECT_EQ(stats.num_samples, 25);
      if (world_size == 1) {
        EXPECT_EQ(stats.num_bad_samples, 4);  // each counted once in four epochs
      }
      for (const std::string& problem : stats.problems) {
        EXPECT_NE(problem.find(": replaced by the next sample"), std::string::npos) << problem;
      }
    }
  }
}

TEST_F(BatchLoaderTest, TooManyUnsoundSamplesEndTheRun) {
  std::map<std::string, std::string> replaced;
  for (int i = 0; i < 5; ++i) replaced[fmt::format("{:03}.png", i * 3)] = "no picture";
  write_shards(20, replaced);
  options_.max_bad_fraction = 0.25;
  BatchLoader enough(options_);
  EXPECT_NO_THROW(ids(enough, 10));
  options_.max_bad_fraction = 0.24;
  BatchLoader loader(options_);
  try {
    ids(loader, 10);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("5 of 20 samples are bad, above the limit of 24 %"),
              std::string::npos)
        << error.what();
  }
}

TEST_F(BatchLoaderTest, WithoutASoundSampleThereIsAnErrorAndNoHang) {
  write_shards(3, {{"000.png", "x"}, {"001.png", "x"}, {"002.png", "x"}});
  options_.max_bad_fraction = 1;
  BatchLoader loader(options_);
  EXPECT_THROW(loader.next(), DataError);
}

TEST_F(BatchLoaderTest, PicturesOfOtherSizesAreCroppedAndResized) {
  write_shards(4);
  options_.height = 6;
  options_.width = 10;
  BatchLoader loader(options_);
  const Batch batch = loader.next();
  EXPECT_EQ(batch.pixels.size(), 4U * 6 * 10 * 3);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(batch.pixels[i * 180 + 90], batch.sample_ids[i]);
}

TEST_F(BatchLoaderTest, MistakesInTheOptionsAreFoundBeforeWorkStarts) {
  write_shards(4);
  const auto with = [&](auto change) {
    DatasetOptions options = options_;
    change(options);
    return options;
  };
  EXPECT_THROW(BatchLoader(with([](auto& o) { o.height = 0; })), ConfigError);
  EXPECT_THROW(BatchLoader(with([](auto& o) { o.batch_size = 0; })), ConfigError);
  EXPECT_THROW(BatchLoader(with([](auto& o) { o.num_threads = 0; })), ConfigError);
  EXPECT_THROW(BatchLoader(with([](auto& o) { o.start_position = -1; })), ConfigError);
  EXPECT_THROW(BatchLoader(with([](auto& o) { o.max_bad_fraction = 1.5; })), ConfigError);
  EXPECT_THROW(BatchLoader(with([](auto& o) { o.shards = {"absent.tar"}; })), ConfigError);
  EXPECT_THROW(BatchLoader(with([](auto& o) { o.shards = {}; })), ConfigError);
}

TEST_F(BatchLoaderTest, MayBeDestroyedWhileWorkersAreBusy) {
  write_shards(25);
  options_.prefetch_batches = 20;
  for (int i = 0; i < 20; ++i) BatchLoader loader(options_);
}

}  // namespace
}  // namespace flowshard::dataset
