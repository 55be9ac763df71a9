#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "base/fd.h"
#include "checkpoint/header.h"
#include "weightcast/status.h"

namespace weightcast::checkpoint {

/// A safetensors file, held open. Const and thread safe once open.
///
/// It is read by read(2) and never mapped: a mapped page that a writer has cut off kills the process that
/// touches it (SIGBUS). Writers that replace a file by rename, as weightcast and the reference writer do, are
/// harmless. A writer that changes the file in place is found by CheckUnchanged(): bytes that were read
/// before a check that passed are those of Open.
class SafetensorsFile {
 public:
  /// Opens the file and checks its header against its size.
  /// Errors: kInvalidArgument (no such file), kPermission, kCorrupt with the path and the reason.
  static Result<SafetensorsFile> Open(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] const Header& header() const { return *header_; }
  /// Copies bytes [offset, offset + out.size()) of a tensor by read(2).
  /// Errors: kOutOfBounds; kCorrupt when the file has been shortened.
  Status Read(size_t tensor, uint64_t offset, std::span<std::byte> out) const;

  /// kCorrupt when size or times are no longer those at Open; the message says what to do. Not found are
  /// writes through a mapping to which the kernel gives no new time.
  [[nodiscard]] Status CheckUnchanged() const;

 private:
  SafetensorsFile() = default;

  std::filesystem::path path_;
  UniqueFd fd_;
  std::unique_ptr<const Header> header_;
  struct stat opened_{};
};

}  // namespace weightcast::checkpoint
