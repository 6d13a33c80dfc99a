#include "dataset/webdataset.h"

#include <archive.h>
#include <archive_entry.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>

#include "core/error.h"
#include "core/temporary_folder.h"
#include "dataset/tar_writer.h"

namespace flowshard::dataset {
namespace {

namespace fs = std::filesystem;
using Members = std::vector<std::pair<std::string, std::string>>;  // name, content

class WebDatasetTest : public testing::Test {
 protected:
  fs::path write(const std::string& name, const Members& members) const {
    TarWriter tar(folder_ / name);
    for (const auto& [member, content] : members) tar.add(member, content);
    tar.finish();
    return folder_ / name;
  }

  static std::vector<std::string> keys(const ShardIndex& index) {
    std::vector<std::string> result;
    for (const SampleEntry& sample : index.samples) result.push_back(sample.key);
    return result;
  }

  static bool mentions(const ShardIndex& index, const std::string& text) {
    return std::any_of(index.problems.begin(), index.problems.end(),
                       [&](const std::string& problem) { return problem.find(text) != std::string::npos; });
  }

  TemporaryFolder folder_;
};

using Keys = std::vector<std::string>;
const Members kThree{{"0.jpg", "zero"}, {"0.txt", "a"},    {"0.json", "{}"}, {"1.txt", "b"},
                     {"1.png", "one"},  {"2.webp", "two"}, {"2.txt", "c"}};

TEST_F(WebDatasetTest, SamplesAreReadAtRandomFromTheTar) {
  const WebDataset data(
      {write("a.tar", kThree), write("b.tar", {{"x/0.JPG", std::string(70'000, 'p')}, {"x/0.txt", ""}})}, 2,
      0);
  ASSERT_EQ(data.size(), 4);
  const std::string pictures[] = {"zero", "one", "two", std::string(70'000, 'p')};
  const std::string captions[] = {"a", "b", "c", ""};
  const std::string names[] = {"a.tar:0", "a.tar:1", "a.tar:2", "b.tar:x/0"};
  for (const int i : {3, 1, 0, 2}) {
    const std::vector<uint8_t> image = data.read_image(i);
    EXPECT_EQ(std::string(image.begin(), image.end()), pictures[i]);
    EXPECT_EQ(data.read_caption(i), captions[i]);
    EXPECT_EQ(data.name(i), names[i]);
  }
  EXPECT_TRUE(data.problems().empty());
}

TEST_F(WebDatasetTest, KeysEndAtTheFirstDotOfTheLastPart) {
  const ShardIndex index = index_shard(write("a.tar", {{"v1.2/a.b.txt", "no caption"},
                                                       {"v1.2/a.png", "p"},
                                                       {"v1.2/a.txt", "t"},
                                                       {"__meta__.txt", ""},
                                                       {"README", ""}}));
  EXPECT_EQ(keys(index), (Keys{"v1.2/a"}));
  EXPECT_EQ(index.samples[0].caption.size_bytes, 1);
  EXPECT_TRUE(index.problems.empty());
}

TEST_F(WebDatasetTest, FilesThatDoNotFollowEachOtherAreNoSample) {
  const ShardIndex index = index_shard(write(
      "a.tar",
      {{"0.jpg", "0"}, {"1.jpg", "1"}, {"0.txt", "0"}, {"1.txt", "1"}, {"2.txt", "2"}, {"2.jpg", "2"}}));
  EXPECT_EQ(keys(index), (Keys{"2"}));
  EXPECT_EQ(index.num_bad_samples, 2);
  EXPECT_TRUE(mentions(index, "a.tar:0: its files do not follow each other"));
  EXPECT_TRUE(mentions(index, "a.tar:1: its files do not follow each other"));
}

TEST_F(WebDatasetTest, IncompleteAndAmbiguousSamplesAreNamed) {
  const ShardIndex index = index_shard(write("a.tar", {{"0.jpg", "0"},
                                                       {"1.txt", "1"},
                                                       {"2.jpg", "2"},
                                                       {"2.png", "2"},
                                                       {"2.txt", "2"},
                                                       {"3.txt", "3"},
                                                       {"3.txt", "3"},
                                                       {"3.png", "3"},
                                                       {"4.json", "4"}}));
  EXPECT_TRUE(index.samples.empty());
  EXPECT_EQ(index.num_bad_samples, 5);
  EXPECT_TRUE(mentions(index, "a.tar:0: it has no caption"));
  EXPECT_TRUE(mentions(index, "a.tar:1: it has no picture"));
  EXPECT_TRUE(mentions(index, "a.tar:2: it has two pictures"));
  EXPECT_TRUE(mentions(index, "a.tar:3: it has two captions"));
  EXPECT_TRUE(mentions(index, "a.tar:4: it has no picture"));
  EXPECT_FALSE(index.damaged);
}

TEST_F(WebDatasetTest, GroupingBeginsAnewInEachTar) {
  const Members one{{"base.jpg", "x"}, {"base.txt", "y"}};
  const WebDataset data({write("a.tar", one), write("b.tar", one)}, 1, 0);
  EXPECT_EQ(data.size(), 2);
  EXPECT_EQ(data.num_bad_samples(), 0);
}

TEST_F(WebDatasetTest, ATarCutAnywhereGivesTheWholeSamplesBeforeTheCut) {
  const fs::path path = write("a.tar", kThree);
  // Each member is a header of 512 bytes and one block of content, of which the first few bytes count.
  std::vector<uintmax_t> content_ends;
  for (size_t m = 0; m < kThree.size(); ++m) content_ends.push_back(m * 1024 + 512 + kThree[m].second.size());
  const uintmax_t sample_ends[] = {content_ends[1], content_ends[4], content_ends[6]};
  for (uintmax_t size = 7168; size-- > 0;) {
    if (size % 512 > 10 && size % 512 < 500) continue;  // nothing begins or ends there
    fs::resize_file(path, size);
    const ShardIndex index = index_shard(path);
    const auto whole = std::count_if(std::begin(sample_ends), std::end(sample_ends),
                                     [&](uintmax_t end) { return end <= size; });
    ASSERT_EQ(static_cast<int64_t>(index.samples.size()), whole) << size;
    const bool inside_member = size % 1024 != 0 && size < content_ends[size / 1024];
    ASSERT_TRUE(index.damaged || !inside_member) << size;
  }
}

TEST_F(WebDatasetTest, ATarWithoutItsEndIsWhole) {
  const fs::path path = write("a.tar", kThree);
  fs::resize_file(path, 7168);
  const ShardIndex index = index_shard(path);
  EXPECT_EQ(index.samples.size(), 3U);
  EXPECT_EQ(index.lost_bytes, 0);
  EXPECT_TRUE(mentions(index, "a.tar: damaged (it has no end mark: was it cut?)"));
}

TEST_F(WebDatasetTest, ABadHeaderEndsTheShardAndIsCounted) {
  const fs::path path = write("a.tar", kThree);
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(3 * 1024 + 100)
      .put('9');  // of 1.txt
  const ShardIndex index = index_shard(path);
  EXPECT_EQ(keys(index), (Keys{"0"}));
  EXPECT_TRUE(index.damaged);
  EXPECT_EQ(index.lost_bytes, index.size_bytes - (2 * 1024 + 512 + 2));
  EXPECT_TRUE(mentions(index, "a.tar: damaged (")) << index.problems.at(0);
}

TEST_F(WebDatasetTest, EmptyAndForeignFilesAreDamaged) {
  std::ofstream(folder_ / "zero.tar").flush();
  std::ofstream(folder_ / "gzip.tar") << "\x1f\x8b\x08" << std::string(2000, 'z');
  std::ofstream(folder_ / "text.tar") << "hello";
  for (const char* name : {"zero.tar", "gzip.tar", "text.tar"}) {
    const ShardIndex index = index_shard(folder_ / name);
    EXPECT_TRUE(index.damaged) << name;
    EXPECT_TRUE(mentions(index, name));
  }
  const ShardIndex none = index_shard(write("none.tar", {}));
  EXPECT_FALSE(none.damaged);
  EXPECT_TRUE(mentions(none, "none.tar: holds no sample"));
}

TEST_F(WebDatasetTest, LongNamesAreWholeInBothForms) {
  const std::string base = "folder/" + std::string(150, 'k');
  for (const bool gnu : {true, false}) {
    const fs::path path = folder_ / "long.tar";
    const std::unique_ptr<archive, int (*)(archive*)> tar(archive_write_new(), archive_write_free);
    gnu ? archive_write_set_format_gnutar(tar.get()) : archive_write_set_format_pax(tar.get());
    ASSERT_EQ(archive_write_open_filename(tar.get(), path.c_str()), ARCHIVE_OK);
    for (const std::string name : {"1.jpg", "1.txt", "2.jpg", "2.txt"}) {
      const std::unique_ptr<archive_entry, void (*)(archive_entry*)> entry(archive_entry_new(),
                                                                           archive_entry_free);
      archive_entry_set_pathname(entry.get(), (base + name).c_str());
      archive_entry_set_size(entry.get(), 5);
      archive_entry_set_filetype(entry.get(), AE_IFREG);
      archive_write_header(tar.get(), entry.get());
      archive_write_data(tar.get(), name.c_str(), 5);
    }
    archive_write_close(tar.get());
    EXPECT_EQ(keys(index_shard(path)), (Keys{base + "1", base + "2"})) << gnu;
    const WebDataset data({path}, 1, 0);
    EXPECT_EQ(data.read_caption(1), "2.txt");
  }
}

TEST_F(WebDatasetTest, TooMuchThatIsBadIsAnError) {
  const fs::path good = write("good.tar", kThree);
  const fs::path bad = write("bad.tar", {{"9.txt", "no picture"}});
  EXPECT_THROW(WebDataset({good, bad}, 1, 0.24), DataError);
  EXPECT_EQ(WebDataset({good, bad}, 1, 0.25).num_bad_samples(), 1);
  std::fstream(bad, std::ios::in | std::ios::out | std::ios::binary).seekp(0).put('x');  // all of it is lost
  EXPECT_THROW(WebDataset({good, bad}, 1, 0.49), DataError);
  EXPECT_EQ(WebDataset({good, bad}, 1, 0.5).num_damaged_shards(), 1);  // both files have 10240 bytes
  EXPECT_THROW(WebDataset({write("none.tar", {})}, 1, 0), ConfigError);
}

TEST_F(WebDatasetTest, AShardThatShrinksIsADataError) {
  const fs::path path = write("a.tar", kThree);
  const WebDataset data({path}, 1, 0);
  fs::resize_file(path, 4000);
  EXPECT_NO_THROW(data.read_image(0));
  EXPECT_THROW(data.read_image(2), DataError);
  fs::remove(path);
  EXPECT_THROW(data.read_image(0), DataError);
}

TEST_F(WebDatasetTest, AnEndlessCaptionIsADataError) {
  const WebDataset data({write("a.tar", {{"0.png", "p"}, {"0.txt", std::string((1 << 20) + 1, 'x')}})}, 1, 0);
  EXPECT_THROW(data.read_caption(0), DataError);
}

TEST_F(WebDatasetTest, TheFingerprintTellsDataSetsApart) {
  const uint64_t first = WebDataset({write("a.tar", kThree)}, 1, 0).fingerprint();
  EXPECT_EQ(WebDataset({folder_ / "a.tar"}, 2, 0).fingerprint(), first);
  Members longer = kThree;
  longer[1].second = "another caption";
  EXPECT_NE(WebDataset({write("a.tar", longer)}, 1, 0).fingerprint(), first);
}

TEST_F(WebDatasetTest, ChangedBytesGiveAnIndexInsideTheFile) {
  const fs::path path = write("a.tar", kThree);
  std::ifstream file(path, std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(file), {}};
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    std::string bytes = whole;
    for (int change = 0; change < 3; ++change) {
      // In a header, whose checksum is made right again: the number alone lies.
      const size_t header = random() % kThree.size() * 1024;
      bytes[header + random() % 257] = static_cast<char>(random());
      std::fill_n(bytes.begin() + header + 148, 8, ' ');
      unsigned sum = 0;
      for (size_t k = 0; k < 512; ++k) sum += static_cast<uint8_t>(bytes[header + k]);
      fmt::format_to_n(bytes.begin() + header + 148, 7, "{:06o}{}", sum, '\0');
    }
    std::ofstream(path, std::ios::binary) << bytes;
    const ShardIndex index = index_shard(path);
    for (const SampleEntry& sample : index.samples) {
      for (const FileRange& range : {sample.image, sample.caption}) {
        ASSERT_GE(range.offset, 512);
        ASSERT_GE(range.size_bytes, 0);
        ASSERT_LE(range.offset + range.size_bytes, static_cast<int64_t>(whole.size()));
      }
    }
  }
}

}  // namespace
}  // namespace flowshard::dataset
