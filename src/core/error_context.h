// Saying where an error interrupted the work, for handlers that know it.
#pragma once

#include <string_view>

namespace flowshard {

/// Called in a handler: throws the Error in flight again, of the same type, with "CONTEXT: " before its
/// message.
[[noreturn]] void rethrow_within(std::string_view context);

}  // namespace flowshard
