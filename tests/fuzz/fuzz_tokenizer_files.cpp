// The files of a tokenizer folder. The first byte says which file of the quick-start model the rest stands
// for.
#include <array>
#include <fstream>
#include <memory>

#include "core/error.h"
#include "fuzz.h"
#include "models/tokenizer/clip_tokenizer.h"
#include "models/tokenizer/t5_tokenizer.h"

using namespace flowshard;
namespace fs = std::filesystem;

namespace {

struct Place {
  std::string_view folder, file;
};
constexpr std::array kPlaces = {
    Place{"tokenizer", "vocab.json"},
    Place{"tokenizer", "merges.txt"},
    Place{"tokenizer", "tokenizer.json"},
    Place{"tokenizer", "tokenizer_config.json"},
    Place{"tokenizer", "special_tokens_map.json"},
    Place{"tokenizer", "added_tokens.json"},
    Place{"tokenizer_2", "spiece.model"},
    Place{"tokenizer_2", "tokenizer.json"},
    Place{"tokenizer_2", "tokenizer_config.json"},
};

// What stands in the folder beside the file in question.
constexpr std::array kRest = {
    Place{"tokenizer", "vocab.json"},
    Place{"tokenizer", "merges.txt"},
    Place{"tokenizer_2", "tokenizer.json"},
};
constexpr std::array kRestContents = {
    R"({"<|startoftext|>": 0, "<|endoftext|>": 1, "a": 2, "a</w>": 3, "r": 4, "e": 5, "d</w>": 6, "re": 7, "red</w>": 8})",
    "#version: 0.2\nr e\nre d</w>\n",
    R"({"model": {"vocab": [["<pad>", 0], ["</s>", 0], ["<unk>", 0], ["\u2581a", -2]]}})",
};

class Folder {
 public:
  Folder(const Place& place, const fs::path& file) {
    std::string pattern = (fs::temp_directory_path() / "flowshard-fuzz-XXXXXX").string();
    fuzz::require(::mkdtemp(pattern.data()) != nullptr, "a temporary folder can be made");
    path_ = pattern;
    fs::create_symlink(file, path_ / place.file);
    for (size_t i = 0; i < kRest.size(); ++i) {
      const bool given = place.file == kRest[i].file || place.file == "spiece.model";
      if (kRest[i].folder == place.folder && !given) std::ofstream(path_ / kRest[i].file) << kRestContents[i];
    }
  }
  ~Folder() { fs::remove_all(path_); }

  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

template <typename Tokenizer>
void load_and_use(const fs::path& folder) {
  fuzz::expect_result_or_error<ConfigError>([&] {
    const Tokenizer tokenizer(folder);
    for (const char* prompt : {"red a", "\u00c9t\u00e9 <pad>\u2581</s><|endoftext|>12", "\ufb01\u0301 x"}) {
      fuzz::require(tokenizer.encode(prompt, 9).ids.size() == 9, "the ids are as many as were asked for");
    }
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0 || data[0] >= kPlaces.size()) return -1;
  static fuzz::MemoryFile file;
  static std::array<std::unique_ptr<Folder>, kPlaces.size()> folders;
  const Place& place = kPlaces[data[0]];
  auto& folder = folders[data[0]];
  if (!folder) folder = std::make_unique<Folder>(place, file.path());
  file.set(data + 1, size - 1);
  if (place.folder == "tokenizer") {
    load_and_use<models::ClipTokenizer>(folder->path());
  } else {
    load_and_use<models::T5Tokenizer>(folder->path());
  }
  return 0;
}
