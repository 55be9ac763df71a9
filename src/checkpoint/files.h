#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "weightcast/status.h"

namespace weightcast::checkpoint {

/// "cannot <doing> <path>: <errno>", with the code that fits: full disks and quotas are kExhausted,
/// forbidden things kPermission, what is not there kInvalidArgument.
Status FileError(std::string_view doing, const std::filesystem::path& path, int error);

/// Opens a regular file to read; never blocks, whatever the path names (a pipe, a device).
Result<UniqueFd> OpenRegularFile(const std::filesystem::path& path);
Result<UniqueFd> OpenFolder(const std::filesystem::path& path);

/// The whole of a small text file. Errors: kCorrupt when it is longer than `limit`.
Result<std::string> ReadTextFile(const std::filesystem::path& path, size_t limit);

/// Fills `out` from `offset` on. Errors: kCorrupt when the file ends before. `path`: for messages.
Status ReadAt(int fd, uint64_t offset, std::span<std::byte> out, const std::filesystem::path& path);
Status WriteAll(int fd, std::span<const std::byte> bytes, const std::filesystem::path& path);

/// fsync. For a folder: its entries.
Status SyncFile(int fd, const std::filesystem::path& path);

/// Makes a folder and those above it; each that is new is on disk when this returns, if `sync`.
Status MakeFolders(const std::filesystem::path& path, bool sync);

/// Refuses what cannot be one visible component of a path: empty, longer than 100 bytes, beginning
/// with '.', with a '/' or a control character. `what` says what it is, for the message.
Status CheckPlainName(std::string_view what, std::string_view name);

}  // namespace weightcast::checkpoint
