#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <fstream>
#include <sstream>

#include "core/error.h"
#include "core/temporary_folder.h"
#include "storage/atomic_file.h"
#include "storage/mapped_file.h"
#include "storage/writable_folder.h"

namespace flowshard::storage {
namespace {

namespace fs = std::filesystem;

class Storage : public testing::Test {
 protected:
  std::string contents(const fs::path& path) const {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  size_t num_files() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(folder_.path()), fs::directory_iterator()));
  }
  // What `action` says when it fails.
  template <typename Action>
  std::string error_of(Action action) const {
    try {
      action();
    } catch (const DataError& error) {
      return error.what();
    }
    return "no error";
  }

  const TemporaryFolder folder_;
};

TEST_F(Storage, PublishedFileReplacesTheOldOne) {
  const fs::path path = folder_ / "a";
  std::ofstream(path) << "old";
  {
    AtomicFile file(path);
    file.write("ne");
    file.write("w");
    EXPECT_EQ(contents(path), "old");
    const FileDigest digest = file.publish();
    EXPECT_EQ(digest.size_bytes, 3);
    EXPECT_EQ(digest, digest_of(std::as_bytes(std::span("new", 3))));
  }
  EXPECT_EQ(contents(path), "new");
  EXPECT_EQ(num_files(), 1U);
}

TEST_F(Storage, ChecksumIsXxh3) {
  // From Python: xxhash.xxh3_64_hexdigest(b"flowshard") and of b"".
  EXPECT_EQ(digest_of(std::as_bytes(std::span("flowshard", 9))).checksum, 0xa70c46f69dcf76eeU);
  EXPECT_EQ(digest_of({}).checksum, 0x2d06800538d394c2U);
}

TEST_F(Storage, UnpublishedFileLeavesNothing) {
  const fs::path path = folder_ / "a";
  std::ofstream(path) << "old";
  { AtomicFile(path).write("new"); }
  EXPECT_EQ(contents(path), "old");
  EXPECT_EQ(num_files(), 1U);
}

TEST_F(Storage, NewFileHasTheModeOfAnOrdinaryFile) {
  std::ofstream(folder_ / "ordinary") << "x";
  AtomicFile(folder_ / "a").publish();
  EXPECT_EQ(fs::status(folder_ / "a").permissions(), fs::status(folder_ / "ordinary").permissions());
}

TEST_F(Storage, FileTooLargeIsAnErrorAndLeavesNothing) {
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit limit = {.rlim_cur = 3 << 20, .rlim_max = before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const std::string error = error_of([&] {
    AtomicFile file(folder_ / "a");
    file.write(std::string(4 << 20, 'x'));
    file.publish();
  });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(error.find((folder_ / "a").string()), std::string::npos) << error;
  EXPECT_NE(error.find("File too large"), std::string::npos) << error;
  EXPECT_EQ(num_files(), 0U);
}

TEST_F(Storage, NoSpaceIsAnErrorAndLeavesNothing) {
  const fs::path small = folder_ / "small";
  fs::create_directory(small);
  if (::mount("none", small.c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "not run: mounting a small file system needs root";
  }
  const std::string error = error_of([&] {
    AtomicFile file(small / "a");
    file.write(std::string(2 << 20, 'x'));
  });
  EXPECT_TRUE(fs::is_empty(small));
  ::umount2(small.c_str(), MNT_DETACH);
  EXPECT_NE(error.find("No space left on device (free some space"), std::string::npos) << error;
}

TEST_F(Storage, NoRoomForTheExpectedBytesIsToldBeforehand) {
  const std::string error = error_of([&] { AtomicFile(folder_ / "a", int64_t{1} << 60); });
  EXPECT_TRUE(error.starts_with("cannot write " + (folder_ / "a").string() +
                                ": it takes 1152921504606846976 bytes, but "))
      << error;
  EXPECT_TRUE(error.ends_with(" are free (free some space or write elsewhere)")) << error;
  EXPECT_EQ(num_files(), 0U);
  EXPECT_EQ(error_of([&] { AtomicFile(folder_ / "a", 1000); }), "no error");
}

TEST_F(Storage, NoFolderOrAFolderInTheWayIsAnError) {
  EXPECT_NE(error_of([&] { AtomicFile(folder_ / "none" / "a"); }).find("No such file"), std::string::npos);
  fs::create_directories(folder_ / "b" / "c");
  EXPECT_NE(error_of([&] { AtomicFile(folder_ / "b").publish(); }).find("cannot write"), std::string::npos);
  EXPECT_EQ(num_files(), 1U);
}

TEST_F(Storage, WhatCannotBeWrittenIsToldBeforehand) {
  require_writable_folder(folder_ / "x" / "y", "--output");
  require_writable_file(folder_ / "x" / "a.png", "--output");
  require_writable_file("a.png", "--output");
  std::ofstream(folder_ / "file") << "";
  const auto message_of = [](const auto& action) -> std::string {
    try {
      action();
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  };
  const std::string file = (folder_ / "file").string();
  EXPECT_EQ(message_of([&] { require_writable_folder(folder_ / "file" / "x", "--output"); }),
            "--output: " + file + "/x cannot be a folder: " + file + " is a file");
  EXPECT_EQ(message_of([&] { require_writable_file(folder_.path(), "--grid"); }),
            "--grid: " + folder_.path().string() + " is a folder: name a file");
  EXPECT_EQ(message_of([&] { require_writable_file("/dev/null", "--grid"); }),
            "--grid: /dev/null is a device or a pipe: name a file");
  EXPECT_EQ(num_files(), 1U);
}

TEST_F(Storage, MapsTheBytes) {
  std::ofstream(folder_ / "a") << "abc";
  EXPECT_EQ(MappedFile(folder_ / "a").text(), "abc");
  std::ofstream(folder_ / "empty") << "";
  EXPECT_EQ(MappedFile(folder_ / "empty").text(), "");
}

TEST_F(Storage, MappedBytesOutliveTheName) {
  std::ofstream(folder_ / "a") << "abc";
  const MappedFile file(folder_ / "a");
  AtomicFile next(folder_ / "a");
  next.write("xyz");
  next.publish();
  EXPECT_EQ(file.text(), "abc");
}

TEST_F(Storage, WhatIsNoFileIsAnError) {
  EXPECT_NE(error_of([&] { MappedFile(folder_ / "none"); }).find("No such file"), std::string::npos);
  EXPECT_NE(error_of([&] { MappedFile(folder_ / "."); }).find("not a regular file"), std::string::npos);
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_NE(error_of([&] { MappedFile(folder_ / "pipe"); }).find("not a regular file"), std::string::npos);
}

}  // namespace
}  // namespace flowshard::storage
