#include "checkpoint/mismatch.h"

#include "checkpoint/checkpoint_json.h"
#include "core/error.h"
#include "core/nearest_name.h"

namespace flowshard::checkpoint {
namespace {

constexpr size_t kNamesShown = 3;

// `in_words` is called for the shown ones only: it may take time.
template <typename InWords>
void describe(std::vector<std::string>& faults, const std::vector<std::string>& names, const char* what,
              const InWords& in_words) {
  if (names.empty()) return;
  std::vector<std::string> shown;
  for (size_t i = 0; i < names.size() && i < kNamesShown; ++i) shown.push_back(in_words(names[i]));
  faults.push_back(fmt::format("{} {} ({}{})", names.size(), what, fmt::join(shown, ", "),
                               names.size() > kNamesShown ? ", ..." : ""));
}

}  // namespace

void Mismatch::throw_if_any(const std::string& source) const {
  std::vector<std::string> faults;
  describe(faults, missing, "missing", [&](const std::string& name) {
    const auto nearest = nearest_name(name, unexpected);
    return nearest ? fmt::format("{}; the file has {}", in_quotes(name), in_quotes(*nearest))
                   : in_quotes(name);
  });
  describe(faults, unexpected, "unexpected", in_quotes);
  describe(faults, misshapen, "of another shape or kind", [](const std::string& words) { return words; });
  if (!faults.empty()) {
    throw CheckpointError("{}: its tensors do not fit the model: {}", source, fmt::join(faults, "; "));
  }
}

}  // namespace flowshard::checkpoint
