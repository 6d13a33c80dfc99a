// How the tensors of a file differ from those of a model, as one line.
#pragma once

#include <string>
#include <vector>

namespace flowshard::checkpoint {

struct Mismatch {
  std::vector<std::string> missing;     // names that the model has and the file lacks
  std::vector<std::string> unexpected;  // the other way round
  std::vector<std::string> misshapen;   // in words, with the name

  /// Throws CheckpointError, which begins with `source`, if any list has an entry: the counts, the first few
  /// of each, and for a missing one the nearest unexpected name.
  void throw_if_any(const std::string& source) const;
};

}  // namespace flowshard::checkpoint
