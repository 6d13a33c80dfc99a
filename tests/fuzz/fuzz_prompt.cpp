// Both tokenizers on the bytes of a prompt.
#include "core/error.h"
#include "fuzz.h"
#include "models/tokenizer/clip_tokenizer.h"
#include "models/tokenizer/t5_tokenizer.h"

using namespace flowshard;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::filesystem::path model = FLOWSHARD_QUICKSTART_MODEL;
  static const models::ClipTokenizer clip(model / "tokenizer");
  static const models::T5Tokenizer t5(model / "tokenizer_2");
  const std::string prompt(reinterpret_cast<const char*>(data), size);
  // With room for every token, and with room for few.
  for (const int64_t length : {static_cast<int64_t>(4 * size + 8), int64_t{5}}) {
    const auto check = [&](const models::TokenIds& tokens) {
      fuzz::require(tokens.ids.size() == static_cast<size_t>(length),
                    "the ids are as many as were asked for");
      for (const int64_t id : tokens.ids) fuzz::require(id >= 0 && id < 100'000, "ids are of the vocabulary");
    };
    fuzz::expect_result_or_error<ConfigError>([&] { check(clip.encode(prompt, length)); });
    fuzz::expect_result_or_error<ConfigError>([&] { check(t5.encode(prompt, length)); });
  }
  return 0;
}
