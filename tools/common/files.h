#pragma once

#include <filesystem>
#include <string_view>

#include "weightcast/status.h"

namespace weightcast::tools {

/// The file appears whole, or replaces an older one, in one instant. Errors name the path.
Status WriteFileAtomically(const std::filesystem::path& path, std::string_view bytes);

/// A fresh folder below the system's temporary one, readable by this user alone.
Result<std::filesystem::path> MakeTemporaryFolder();

/// Whether files in this folder lie in memory (tmpfs, ramfs).
bool LiesInMemory(const std::filesystem::path& folder);

/// Bytes that can still be written to the file system of this folder; the largest number when unknown.
uint64_t FreeDisk(const std::filesystem::path& folder);

}  // namespace weightcast::tools
