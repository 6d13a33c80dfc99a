// Telling the weights of one model from those of another without reading all of them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace flowshard::inference {

/// 16 hexadecimal digits that depend on the contents of files, not on where they lie or when they were
/// written: names, sizes and 4 KiB at 257 places of each file (all of a file of up to 1 MiB). A path is a
/// file; a folder of a model (of its parts the safetensors, JSON and tokenizer files); or any other folder
/// (those directly in it). Empty paths count for nothing, one that is given twice counts once. Throws
/// DataError if a file cannot be read.
std::string fingerprint(const std::vector<std::filesystem::path>& paths);

}  // namespace flowshard::inference
