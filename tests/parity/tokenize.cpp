// flowshard_tokenize clip|t5 FOLDER LENGTH
// Reads one JSON string a line and writes {"ids": [...], "truncated": "..."} for each.
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/error.h"
#include "models/tokenizer/clip_tokenizer.h"
#include "models/tokenizer/t5_tokenizer.h"

namespace {

template <typename Tokenizer>
void tokenize_lines(const char* folder, int64_t length) {
  const Tokenizer tokenizer(folder);
  for (std::string line; std::getline(std::cin, line);) {
    const auto tokens = tokenizer.encode(nlohmann::json::parse(line).get<std::string>(), length);
    std::cout << nlohmann::json{{"ids", tokens.ids}, {"truncated", tokens.truncated}} << '\n';
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: flowshard_tokenize clip|t5 FOLDER LENGTH\n";
    return static_cast<int>(flowshard::ExitCode::kUsage);
  }
  try {
    const auto tokenize = argv[1] == std::string_view("clip")
                              ? tokenize_lines<flowshard::models::ClipTokenizer>
                              : tokenize_lines<flowshard::models::T5Tokenizer>;
    tokenize(argv[2], std::atoll(argv[3]));
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return static_cast<int>(flowshard::exit_code_of(error));
  }
}
