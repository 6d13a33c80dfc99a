// Finding what the user probably meant by a misspelt key.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace flowshard {

/// The candidate that needs the fewest edits (insert, delete, replace, swap of neighbours) to become `name`;
/// nothing if even that one differs in more than `most` of its letters. Of equally near ones, the first.
std::optional<std::string> nearest_name(std::string_view name, std::span<const std::string> candidates,
                                        double most = 0.5);

}  // namespace flowshard
