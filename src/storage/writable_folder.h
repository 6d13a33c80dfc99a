// Whether files can be made in a folder, told before the work whose result would go there.
#pragma once

#include <filesystem>
#include <string_view>

namespace flowshard::storage {

/// Throws ConfigError, which names `setting`, unless `folder` may be written to or, if it does not exist, be
/// made. Makes nothing.
void require_writable_folder(const std::filesystem::path& folder, std::string_view setting);

/// The same of a file: also throws if a folder, a device or a pipe is in its place, or a file that may not be
/// written.
void require_writable_file(const std::filesystem::path& file, std::string_view setting);

}  // namespace flowshard::storage
