#include "inference/fingerprint.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "core/temporary_folder.h"

namespace flowshard::inference {
namespace {

namespace fs = std::filesystem;

class Fingerprint : public testing::Test {
 protected:
  fs::path write(const std::string& name, const std::string& content) const {
    fs::create_directories((folder / name).parent_path());
    std::ofstream(folder / name, std::ios::binary) << content;
    return folder / name;
  }

  TemporaryFolder folder;
};

TEST_F(Fingerprint, DependsOnNamesSizesAndContents) {
  const std::string first = fingerprint({write("a.safetensors", "abc")});
  EXPECT_EQ(first.size(), 16U);
  EXPECT_EQ(fingerprint({write("elsewhere/a.safetensors", "abc")}), first);
  EXPECT_NE(fingerprint({write("elsewhere/b.safetensors", "abc")}), first);
  EXPECT_NE(fingerprint({write("a.safetensors", "abd")}), first);
}

TEST_F(Fingerprint, SeesTheEndsAndTheMiddleOfALargeFile) {
  const std::string content(5 << 20, 'x');
  const std::string first = fingerprint({write("a.safetensors", content)});
  for (const size_t at : {size_t{0}, content.size() / 2, content.size() - 1}) {
    std::string changed = content;
    // As training would: more than one byte.
    for (size_t i = at; i < std::min(content.size(), at + (64 << 10)); ++i) changed[i] = 'y';
    EXPECT_NE(fingerprint({write("a.safetensors", changed)}), first) << at;
  }
  EXPECT_NE(fingerprint({write("a.safetensors", content + "x")}), first);
}

TEST_F(Fingerprint, OfAModelOnlyItsPartsCount) {
  write("model/transformer/diffusion_pytorch_model.safetensors", "weights");
  write("model/tokenizer/merges.txt", "a b");
  const std::string first = fingerprint({folder / "model"});
  write("model/flux1-dev.safetensors", "of no part");
  write("model/transformer/picture.png", "no weights");
  EXPECT_EQ(fingerprint({folder / "model"}), first);
  EXPECT_EQ(fingerprint({folder / "model", "", folder / "model/"}), first);
  write("model/tokenizer/merges.txt", "b a");
  EXPECT_NE(fingerprint({folder / "model"}), first);
}

}  // namespace
}  // namespace flowshard::inference
